"""Lines of a log: a refusal is one line, a fault has its traceback."""

import logging

import pytest
import redis
import structlog
from django.core.exceptions import DisallowedHost, PermissionDenied
from kombu.exceptions import OperationalError

from mirbad.kernel import logs
from mirbad.kernel.conf import settings

pytestmark = pytest.mark.unit


@pytest.fixture
def lines(tmp_path, monkeypatch):
    """A function: the lines that were logged since."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    (tmp_path / "logs").mkdir()
    monkeypatch.setattr(logs, "settings", lambda: settings().model_copy(update={"data": tmp_path}))
    logs.configure("web", console=False)
    yield lambda: (tmp_path / "logs" / "web.log").read_text().splitlines()
    for handler in root.handlers:
        handler.close()
    root.handlers[:], _ = handlers, root.setLevel(level)
    logging.captureWarnings(False)


def _log(error: Exception) -> None:
    try:
        raise error
    except type(error):
        logging.getLogger("django.request").exception("It failed: %s", error)


def test_a_fault_is_logged_with_its_traceback(lines):
    _log(RuntimeError("broken"))
    assert "Traceback" in lines()[-1]


def test_a_refusal_is_logged_as_a_warning_without_one(lines):
    _log(PermissionDenied("Not you."))
    assert "Traceback" not in lines()[-1]
    assert '"level": "warning"' in lines()[-1]
    assert "Not you." in lines()[-1]


def test_an_unknown_host_is_one_line_that_names_our_setting(lines):
    _log(DisallowedHost("You may need to add 'other' to ALLOWED_HOSTS."))
    assert "Traceback" not in lines()[-1]
    assert "add 'other' to MIRBAD_HOSTS" in lines()[-1]


@pytest.mark.parametrize("error", [redis.exceptions.TimeoutError("Timeout reading from socket"), OperationalError()])
def test_a_broker_that_is_slow_or_away_is_one_line(lines, error):
    _log(error)
    assert "Traceback" not in lines()[-1]
    assert "the broker: " in lines()[-1]
    assert '"level": "warning"' in lines()[-1]


def test_a_structured_line_about_the_broker_keeps_its_words_and_has_no_traceback(lines):
    try:
        raise redis.exceptions.ConnectionError("refused")
    except redis.exceptions.RedisError:
        structlog.get_logger("mirbad.x").exception("no notices of changes", node="pc-1")
    assert "Traceback" not in lines()[-1]
    assert "no notices of changes" in lines()[-1]
