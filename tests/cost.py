"""What a piece of work costs, on a machine that others use too."""

import gc
import time
from collections.abc import Callable


def least_seconds(work: Callable[[], object], *, within: float, tries: int = 5) -> float:
    """The least CPU time of several runs, in seconds; the first one within the bound is enough.

    The collector rests meanwhile: a full collection in a process of many tests takes longer than most bounds,
    and is not the work's. A cost that grows too fast stays over its bound however often it is looked at.
    """
    least = float("inf")
    for _ in range(tries):
        gc.disable()
        try:
            began = time.process_time()
            work()
            least = min(least, time.process_time() - began)
        finally:
            gc.enable()
        if least <= within:
            break
    return least
