"""How the interpreter runs in a server process: which pauses it makes, and how threads take turns."""

from __future__ import annotations

import gc
import sys

SWITCH_SECONDS = 0.0005
"""How long a thread may keep the interpreter's lock when another one wants it. The event loop asks for the lock once
for every socket that is ready; with the default of 5 ms and two busy threads an answer from `/health` took 370 ms,
with this 30."""

_THRESHOLDS = (100_000, 10, 10)
"""Objects more than before, between two collections. With the default of 700 most of the time that a large body takes
to decode goes into looking through what was decoded so far: 163 ms instead of 43 for a million objects."""


def settle() -> None:
    """Call once, when all that stays is loaded: it is never looked through again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    sys.setswitchinterval(SWITCH_SECONDS)
