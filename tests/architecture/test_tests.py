"""Tests can fail: each asserts something, and nothing that holds either way."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.architecture.source import ROOT, name, tree
from tests.architecture.test_sizes import FUNCTION_LINES
from tests.mutants.explained import EXPLAINED
from tests.mutants.table import TARGETS

Function = ast.FunctionDef | ast.AsyncFunctionDef
# Calls that fail by themselves: of pytest and its plugins, of asyncio, of Playwright, and of tests/waiting.py.
ASSERTING = {
    *("raises", "warns", "fail", "django_assert_num_queries", "django_assert_max_num_queries"),
    *("wait_for", "expect", "until", "wait_until", "wait_for_line"),
}


@cache
def _files() -> tuple[Path, ...]:
    return tuple(sorted(path for path in (ROOT / "tests").rglob("*.py") if ".cache" not in path.parts))


def _functions(path: Path) -> Iterator[Function]:
    yield from (node for node in ast.walk(tree(path)) if isinstance(node, Function))


def _tests(path: Path) -> Iterator[Function]:
    if path.name.startswith("test_"):
        yield from (node for node in _functions(path) if node.name.startswith("test_"))


def _called(node: ast.AST) -> set[str]:
    """Return the last names of everything that `node` calls, and of the fixtures that it takes."""
    names = set()
    for call in ast.walk(node):
        if isinstance(call, ast.Call):
            if isinstance(call.func, ast.Attribute):
                names.add(call.func.attr)
            elif isinstance(call.func, ast.Name):
                names.add(call.func.id)
    return names


def _asserts(node: ast.AST) -> bool:
    return any(isinstance(part, ast.Assert) for part in ast.walk(node)) or bool(_called(node) & ASSERTING)


def _asserting_helpers(path: Path) -> set[str]:
    """Return the names of the helpers in `path` that assert, by themselves or through another helper of it."""
    helpers = {node.name: node for node in _functions(path) if not node.name.startswith("test_")}
    found = {helper for helper, node in helpers.items() if _asserts(node)}
    while more := {helper for helper, node in helpers.items() if helper not in found and _called(node) & found}:
        found |= more
    return found


def _place(path: Path, node: ast.AST) -> str:
    return f"{name(path)}:{node.lineno}"  # type: ignore[attr-defined]


def test_each_test_asserts_something() -> None:
    silent = [
        f"{_place(path, test)} {test.name}"
        for path in _files()
        for test in _tests(path)
        if not _asserts(test) and not _called(test) & _asserting_helpers(path)
    ]
    assert not silent, f"these pass whatever happens short of an exception: {silent}"


def _alternatives(test: ast.expr) -> bool:
    """Return whether `test` holds for one value and for another: `a or b`, or a status among several."""
    if isinstance(test, ast.BoolOp):
        return isinstance(test.op, ast.Or) or any(_alternatives(value) for value in test.values)
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.In):
        among = test.comparators[0]
        if isinstance(among, ast.Tuple | ast.List | ast.Set) and len(among.elts) > 1:
            return all(isinstance(e, ast.Constant) and isinstance(e.value, int) for e in among.elts)
    return False


def _has_turns(iterated: ast.expr) -> bool:
    """Return whether a loop over `iterated` has a turn: a literal, a range, or a constant of the module."""
    is_constant = isinstance(iterated, ast.Name) and iterated.id.isupper()
    return is_constant or isinstance(iterated, ast.Tuple | ast.List) or "range(" in ast.unparse(iterated)


def _always_reached(body: list[ast.stmt], helpers: set[str]) -> bool:
    """Return whether every way through `body` asserts: a loop over a computed list may have no turn."""
    for statement in body:
        match statement:
            case ast.Assert():
                return True
            case ast.With() | ast.AsyncWith():
                if any(_called(item.context_expr) & ASSERTING for item in statement.items):
                    return True
                reached = _always_reached(statement.body, helpers)
            case ast.For() | ast.AsyncFor():
                reached = _has_turns(statement.iter) and _always_reached(statement.body, helpers)
            case ast.If():
                reached = _always_reached(statement.body, helpers) and _always_reached(statement.orelse, helpers)
            case ast.Try():
                ways = [statement.body + statement.orelse, *(handler.body for handler in statement.handlers)]
                reached = all(_always_reached(way, helpers) for way in ways)
                reached = reached or _always_reached(statement.finalbody, helpers)
            case ast.While() | ast.FunctionDef() | ast.AsyncFunctionDef():
                reached = False
            case _:
                reached = bool(_called(statement) & (helpers | ASSERTING))
        if reached:
            return True
    return False


def test_no_way_through_a_test_skips_its_assertions() -> None:
    skipping = [
        f"{_place(path, test)} {test.name}"
        for path in _files()
        for test in _tests(path)
        if not _always_reached(test.body, _asserting_helpers(path))
    ]
    assert not skipping, f"assert that there is something to loop over: {skipping}"


def test_an_assertion_of_either_or_says_why() -> None:
    vague = [
        f"{_place(path, node)} {ast.unparse(node.test)}"
        for path in _files()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Assert) and node.msg is None and _alternatives(node.test)
    ]
    assert not vague, f"assert the right one, or give the reason as the message: {vague}"


def _is_true(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def test_no_assertion_is_true_by_itself() -> None:
    empty = [
        f"{_place(path, node)} {ast.unparse(node)}"
        for path in _files()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Assert | ast.BoolOp)
        if any(map(_is_true, [node.test] if isinstance(node, ast.Assert) else node.values))
    ]
    assert not empty


def test_no_function_of_the_tests_is_longer_than_a_screen() -> None:
    long = {
        f"{_place(path, function)} {function.name}": length
        for path in _files()
        for function in _functions(path)
        if (length := (function.end_lineno or function.lineno) - function.lineno + 1) > FUNCTION_LINES
    }
    assert not long, f"split by what is prepared and what is asserted: {long}"


def test_what_is_mutated_and_its_tests_exist() -> None:
    named = [path for target in TARGETS for path in (target.module, *target.tests)]
    assert not [path for path in named if not (ROOT / path).exists()]
    assert set(EXPLAINED) <= {target.module for target in TARGETS}
