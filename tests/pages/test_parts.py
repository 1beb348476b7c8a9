"""Numbers and times in words."""

from datetime import UTC, datetime, timedelta

import pytest

from mirbad.web import csp, parts
from mirbad.web.icons import strokes

pytestmark = pytest.mark.unit
NOW = datetime(2026, 11, 29, 3, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "not reported"),
        (0, "0 B"),
        (999, "999 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (145_000_000, "138 MiB"),
        (24 * 1024**3, "24 GiB"),
        (23.6 * 1024**3, "23.6 GiB"),
        (2 * 1024**5, "2 PiB"),
        (5000 * 1024**5, "5000 PiB"),
    ],
)
def test_sizes(value, words):
    assert parts.size(value) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "not reported"),
        (0.04, "0.0 s"),
        (9.96, "10.0 s"),
        (59.4, "59 s"),
        (60, "1 min"),
        (200, "3 min 20 s"),
        (7500, "2 h 5 min"),
        (timedelta(days=3, hours=2), "3 d 2 h"),
        (timedelta(days=12), "12 d"),
    ],
)
def test_spans(value, words):
    assert parts.span(value) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (2, "just now"),
        (-2, "just now"),
        (42, "42 s ago"),
        (-3000, "in 50 min"),
        (7300, "2 h ago"),
        (900_000, "10 d ago"),
    ],
)
def test_ages(seconds, words):
    assert parts.ago(NOW - timedelta(seconds=seconds), NOW) == words


def test_an_unknown_share_is_not_a_bar_of_zero():
    for bar in (
        parts.memory_bar("RAM", None, None),
        parts.memory_bar("RAM", None, 5),
        parts.memory_bar("RAM", 5, None),
    ):
        assert not bar.known
        assert "not reported" in bar.text
        assert bar.percent is None
    assert parts.memory_bar("RAM", 0, 1024**3).known
    assert parts.percent_bar("CPU", None).text == "not reported"


def test_a_fingerprint_has_16_groups_of_4():
    groups = parts.fingerprint("0123456789abcdef" * 4)
    assert len(groups) == 16
    assert {len(group) for group in groups} == {4}


def test_the_policy_names_this_host_alone():
    policy = csp.policy("ws://127.0.0.1:8080")
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "connect-src 'self' ws://127.0.0.1:8080;" in policy


def test_every_icon_that_a_template_names_is_there():
    import re
    from pathlib import Path

    root = Path(__file__).resolve().parents[2]
    named = set()
    for template in (root / "templates").rglob("*.html"):
        named |= set(re.findall(r'{% icon "([a-z0-9-]+)"', template.read_text()))
        named |= set(re.findall(r'symbol="([a-z0-9-]+)"', template.read_text()))
    assert named <= strokes().keys()
