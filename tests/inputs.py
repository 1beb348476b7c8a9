"""Counts the inputs that a test tries, for the table of faults (`make figures ONLY=faults`).

Without a word in the test, it tries one input, and a property as many as its examples. A test that tries a whole
collection names it: ``names = inputs(...)``.
"""

from collections.abc import Collection
from typing import TypeVar

T = TypeVar("T", bound=Collection[object])
named = 0
"""Inputs that tests of this process have named so far."""


def inputs(of: T) -> T:
    """Return `of`, and count each of its members as an input of the test that runs."""
    global named
    named += len(of)
    return of
