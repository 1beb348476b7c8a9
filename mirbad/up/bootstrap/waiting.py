"""Waiting for the work of other processes, and showing it meanwhile."""

import time
from collections.abc import Callable

from mirbad.up.errors import CannotStart
from mirbad.up.progress import ProgressDisplay

POLL_SECONDS = 0.2


def until(progress: ProgressDisplay, look: Callable[[], str], *, seconds: float, failure: str) -> None:
    """Call `look` until it returns an empty text; texts meanwhile are shown.

    Raises CannotStart with `failure` and the last state when `seconds` have passed.
    """
    deadline = time.monotonic() + seconds
    while text := look():
        if time.monotonic() > deadline:
            raise CannotStart(f"{failure} (after {seconds:.0f} s: {text})")
        progress.now(text)
        time.sleep(POLL_SECONDS)
