"""The project's own source, as the architecture tests read it."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("mirbad", "audit", "nodes", "models_app", "jobs", "agent")


@cache
def modules() -> tuple[Path, ...]:
    """Every Python file of the product, migrations apart."""
    found = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return tuple(sorted(path for path in found if "migrations" not in path.parts and "__pycache__" not in path.parts))


@cache
def tree(path: Path) -> ast.Module:
    """The syntax tree of `path`."""
    return ast.parse(path.read_text())


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method of `path`."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def name(path: Path) -> str:
    """`path` as a reader writes it."""
    return str(path.relative_to(ROOT))
