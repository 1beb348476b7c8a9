"""Templates are laid out by the formatter, and none has a line that takes scrolling or counting to read."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEMPLATES = ROOT / "templates"
LINE_LENGTH = 120
TAGS_A_LINE = 6
_DJANGO = re.compile(r"\{[%{#].*?[#}%]\}")
_TAG = re.compile(r"</?[a-zA-Z]")


def _lines() -> list[tuple[str, str]]:
    return [
        (f"{path.relative_to(ROOT)}:{number}", line)
        for path in sorted(TEMPLATES.rglob("*.html"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
    ]


def test_no_line_is_longer_than_the_screen() -> None:
    long = [f"{place} ({len(line)})" for place, line in _lines() if len(line) > LINE_LENGTH]
    assert not long, f"break the line, shorten the text, or take a part out into a template: {long}"


def test_no_line_has_more_tags_than_one_can_count() -> None:
    full = [place for place, line in _lines() if len(_TAG.findall(_DJANGO.sub("", line))) > TAGS_A_LINE]
    assert not full, f"at most {TAGS_A_LINE} HTML tags a line: {full}"


def _with_parts(text: str) -> str:
    """Return a template with those that it includes by name behind it."""
    parts = [TEMPLATES / name for name in re.findall(r'include "([^"]+)"', text)]
    return text + "".join(part.read_text() for part in parts)


def test_every_page_has_one_heading_of_the_first_level_to_jump_to() -> None:
    pages = {path: path.read_text() for path in sorted(TEMPLATES.rglob("*.html"))}
    whole = {path: _with_parts(text) for path, text in pages.items() if 'extends "base.html"' in text}
    assert whole
    assert [str(path.relative_to(TEMPLATES)) for path, text in whole.items() if text.count("<h1") != 1] == []


@pytest.mark.parametrize("command", [["--check"], ["check"]])
def test_templates_are_formatted(command: list[str]) -> None:
    formatter = Path(sys.executable).with_name("djangofmt")
    if not formatter.exists():
        pytest.fail("djangofmt is not installed: run `make check`, which installs requirements/dev.txt")
    done = subprocess.run([formatter, *command, TEMPLATES], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"run `.venv/bin/djangofmt templates`\n{done.stdout}{done.stderr}"
