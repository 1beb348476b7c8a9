"""A plugin of pytest that counts the inputs of each test, for ``-p tests.figures.counting``.

A test is one input, a property as many as its examples. A test that tries a whole collection names it (`tests.inputs`).
"""

import functools
import inspect
import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from tests import inputs

REPORT = "MIRBAD_TEST_COUNTS"
"""The environment variable with the path of the report: one line of JSON a test."""


class Running:
    """The counts of the test that runs."""

    examples = 0
    named_before = 0

    def begin(self) -> None:
        """Begin with the next test."""
        self.examples, self.named_before = 0, inputs.named

    @property
    def tried(self) -> int:
        """The inputs that the test tried so far."""
        return (inputs.named - self.named_before) or self.examples or 1


_running = Running()


@functools.cache
def _report() -> int:
    """Return the report, opened once: a line may be written while a test has given up its rights."""
    return os.open(os.environ[REPORT], os.O_WRONLY | os.O_APPEND)


def pytest_configure() -> None:
    """Open the report."""
    _report()


def _counted(test: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(test)
    def counted(*arguments: Any, **more: Any) -> Any:
        _running.examples += 1
        return test(*arguments, **more)

    return counted


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Count the examples of each property."""
    seen = set()
    for item in items:
        found = getattr(getattr(item, "obj", None), "hypothesis", None)
        if found is not None and id(found) not in seen and not inspect.iscoroutinefunction(found.inner_test):
            seen.add(id(found))
            found.inner_test = _counted(found.inner_test)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Begin with the next test."""
    _running.begin()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write the line of a test that ran, or was skipped. Of a test that failed, no answer counts as right."""
    if report.passed and report.when != "call":
        return
    tried = 0 if report.skipped else _running.tried
    line = {"test": report.nodeid, "outcome": report.outcome, "tried": tried, "right": tried if report.passed else 0}
    os.write(_report(), f"{json.dumps(line)}\n".encode())
