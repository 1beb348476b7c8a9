"""The expressions that are changed: mutmut's, less those that only change a sentence or a log line."""

from collections.abc import Callable, Iterable
from typing import Any

import libcst as cst
from mutmut.mutation import mutators


def _is_log(node: cst.CSTNode) -> bool:
    """Return whether `node` calls a logger; a log line is read by people and asserted where it is a contract."""
    return (
        isinstance(node, cst.Call)
        and isinstance(node.func, cst.Attribute)
        and isinstance(node.func.value, cst.Name)
        and node.func.value.value in {"logger", "log"}
    )


def _is_sentence(node: cst.CSTNode) -> bool:
    """Return whether `node` is text for people; the tests of pages and refusals hold its words."""
    return isinstance(node, cst.SimpleString) and " " in node.value


def _unless(skip: Callable[[cst.CSTNode], bool], operator: Callable[[Any], Iterable[Any]]) -> Callable[[Any], Any]:
    return lambda node: () if skip(node) else operator(node)


def install() -> None:
    """Narrow mutmut's own list, for this process and its children."""
    narrowed = {mutators.operator_string: _is_sentence, mutators.operator_arg_removal: _is_log}
    mutators.mutation_operators[:] = [
        (kind, _unless(narrowed[operator], operator) if operator in narrowed else operator)
        for kind, operator in mutators.mutation_operators
    ]
