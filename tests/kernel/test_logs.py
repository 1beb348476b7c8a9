"""What stands in a log: a refusal is one line, a fault has its traceback."""

import logging

import pytest
from django.core.exceptions import DisallowedHost, PermissionDenied

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
