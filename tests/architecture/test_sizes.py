"""Modules, functions and parameter lists stay of a size that one reading takes in."""

import ast

from tests.architecture.source import functions, modules, name

MODULE_LINES = 400
FUNCTION_LINES = 50
PARAMETERS = 7


def test_no_module_is_longer_than_a_reading() -> None:
    long = {name(path): lines for path in modules() if (lines := len(path.read_text().splitlines())) > MODULE_LINES}
    assert not long, f"is there a noun in each that wants a module of its own? {long}"


def test_no_function_is_longer_than_a_screen() -> None:
    long = {
        f"{name(path)}:{function.lineno} {function.name}": length
        for path in modules()
        for function in functions(path)
        if (length := (function.end_lineno or function.lineno) - function.lineno + 1) > FUNCTION_LINES
    }
    assert not long, f"split by verb: {long}"


def _required(arguments: ast.arguments) -> int:
    """Parameters that every caller must think of: positional ones, and keyword-only ones without a default."""
    positional = [a for a in arguments.posonlyargs + arguments.args if a.arg not in {"self", "cls"}]
    needed = [default for default in arguments.kw_defaults if default is None]
    return len(positional) + len(needed)


def test_no_function_takes_more_parameters_than_fit_in_a_head() -> None:
    wide = {
        f"{name(path)}:{function.lineno} {function.name}": count
        for path in modules()
        for function in functions(path)
        if (count := _required(function.args)) > PARAMETERS
    }
    assert not wide, f"give them a dataclass: {wide}"
