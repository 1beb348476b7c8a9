"""A reason with a code: a sentence for a person that a program can tell apart."""

from collections.abc import Iterable
from typing import Self

OTHER = "node_warning"
"""The code of a reason from an agent that sends sentences alone."""


class Reason(str):
    """A sentence that knows its code. It is the sentence wherever text is needed."""

    __slots__ = ("code",)

    code: str

    def __new__(cls, code: str, sentence: str) -> Self:
        """Return `sentence` with `code`."""
        made = super().__new__(cls, sentence)
        made.code = code
        return made


def coded(code: str, sentences: Iterable[str]) -> tuple[Reason, ...]:
    """Return `sentences` with `code`; those that have one keep it."""
    return tuple(text if isinstance(text, Reason) else Reason(code, text) for text in sentences)


def codes(sentences: Iterable[str]) -> tuple[str, ...]:
    """Return the code of each of `sentences`."""
    return tuple(text.code if isinstance(text, Reason) else OTHER for text in sentences)


def paired(sentences: Iterable[str], known: Iterable[str]) -> tuple[Reason, ...]:
    """Return `sentences` with the codes that were sent beside them, as far as they go."""
    rest = iter(known)
    return tuple(Reason(next(rest, "") or OTHER, text) for text in sentences)
