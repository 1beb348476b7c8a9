"""The number of a log line reaches the line itself, in each format of agent and master."""

import ast
import io
import json
import logging
import re
import sys
from pathlib import Path

import pytest

from agent.server import logs as of_agent
from mirbad.kernel import logs as of_master
from tests.architecture.source import ROOT, modules

pytestmark = pytest.mark.unit


def numbers():
    """Every literal number in an ``extra={"id": …}`` of the product, by the file that logs it."""
    found = {}
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Dict) and node.keys and all(isinstance(key, ast.Constant) for key in node.keys):
                for key, value in zip(node.keys, node.values, strict=True):
                    if key.value == "id" and isinstance(value, ast.Constant) and isinstance(value.value, int):
                        found[value.value] = path
    return found


NUMBERS = numbers()


def test_the_numbers_are_those_of_the_guide():
    guide = (ROOT / "docs/troubleshooting.md").read_text()
    assert set(NUMBERS) == {int(number) for number in re.findall(r"^\| (\d{4}) \|", guide, re.MULTILINE)}
    assert len(NUMBERS) >= 6


def record(number, level, fault):
    info = None
    if fault:
        try:
            raise ValueError("a driver that broke")
        except ValueError:
            info = sys.exc_info()
    made = logging.LogRecord("agent.x", level, str(Path("x.py")), 1, "It holds %s", ("twelve",), info)
    if number is not None:
        made.id = number
    return made


@pytest.mark.parametrize("number", sorted(NUMBERS))
@pytest.mark.parametrize("level", [logging.INFO, logging.WARNING, logging.ERROR])
@pytest.mark.parametrize("fault", [False, True])
def test_a_number_reaches_the_line_in_both_formats_of_the_agent_and_of_the_master(number, level, fault):
    readable = of_agent.ReadableFormatter()
    one = record(number, level, fault)
    assert f" agent.x: [{number}] It holds twelve" in readable.format(one)
    assert readable.format(one).count(f"[{number}]") == 1  # a second handler gets the same line
    line = json.loads(of_agent.JsonFormatter().format(record(number, level, fault)))
    assert (line["id"], line["message"]) == (number, "It holds twelve")
    assert ("a driver that broke" in str(line.get("traceback"))) is fault
    console, file = of_master._console(), of_master._file(Path("/dev/null"))
    assert f"id={number}" in console.formatter.format(record(number, level, fault))
    assert json.loads(file.formatter.format(record(number, level, fault)))["id"] == number


@pytest.mark.parametrize("stray", [None, "2640", "x", 1.5])
def test_a_line_without_a_number_has_none(stray):
    assert "[" not in of_agent.ReadableFormatter().format(record(stray, logging.INFO, False))
    assert "id" not in json.loads(of_agent.JsonFormatter().format(record(stray, logging.INFO, False)))


@pytest.mark.parametrize("for_a_person", [False, True])
def test_the_configured_agent_writes_it(for_a_person):
    stream, before = io.StringIO(), logging.getLogger().handlers[:]
    level = logging.getLogger().level
    try:
        of_agent.configure("info", stream, for_a_person=for_a_person)
        logging.getLogger("agent.telemetry.memory").info("Memory model %s", "unified", extra={"id": 2640})
    finally:
        logging.getLogger().handlers[:] = before
        logging.getLogger().setLevel(level)
        logging.captureWarnings(False)
    assert ("[2640]" if for_a_person else '"id": 2640') in stream.getvalue()
