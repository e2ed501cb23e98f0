"""Settings for all tests."""

from __future__ import annotations

import gc
import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "default", deadline=None, derandomize=True, max_examples=100, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("long", deadline=None, max_examples=3000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("DERENDER_HYPOTHESIS", "default"))


def pytest_collection_finish() -> None:
    """Leave what is loaded out of later collections, as the server does when it starts.

    A full collection over all test modules takes longer than many a bound on time.
    """
    gc.collect()
    gc.freeze()
