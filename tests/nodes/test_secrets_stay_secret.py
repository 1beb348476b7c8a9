"""Canaries: what is secret in a join is in no log, no row in clear, no audit line and no error."""

import json
import logging

import pytest
from django.apps import apps

from agent.common import keys
from mirbad.kernel import logs
from mirbad.kernel.conf import settings
from nodes.enrollment import join, listener, tokens
from nodes.enrollment.body import read_enroll_request
from nodes.errors import EnrollmentRefused
from nodes.pki import store
from tests.nodes.parts import OPERATOR, PEER, request_for

pytestmark = [pytest.mark.app, pytest.mark.usefixtures("master")]


def every_row() -> str:
    """All columns of all rows of every app, as text and as the bytes they are."""
    found = []
    for model in apps.get_models():
        for values in model.objects.values_list():
            found += [
                bytes(value).decode("latin-1") if isinstance(value, bytes | memoryview) else str(value)
                for value in values
            ]
    return "\n".join(found)


@pytest.fixture
def log_file(tmp_path, monkeypatch):
    """The log of a process, with everything down to debug."""
    quiet = settings().model_copy(update={"data": tmp_path, "log_level": "debug"})
    quiet.logs_dir.mkdir()
    monkeypatch.setattr(logs, "settings", lambda: quiet)
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    logs.configure("canary")
    yield quiet.logs_dir / "canary.log"
    for handler in root.handlers:
        handler.close()
    root.handlers[:] = before
    root.setLevel(level)
    logging.captureWarnings(False)


def test_neither_token_nor_private_key_is_anywhere(log_file, capsys):
    made = tokens.create("pc-1", actor=OPERATOR, display_name="Kitchen")
    other = tokens.create("pc-2", actor=OPERATOR)
    secrets = [one.token.split(".")[1] for one in (made, other)]
    key = keys.new_key()
    join.enroll(request_for(made.token, "pc-1", key), PEER)
    errors = []
    for token, node_id in ((made.token, "pc-1"), (other.token, "pc-9"), (f"x{other.token}", "pc-2")):
        with pytest.raises(EnrollmentRefused) as caught:
            join.enroll(request_for(token, node_id, keys.new_key()), PEER)
        errors.append(str(vars(caught.value)))
    log = logging.getLogger("canary")
    log.warning("token=%s", made.token)
    try:
        raise RuntimeError(f"the token is {made.token} and the key {keys.key_to_pem(key).decode()}")
    except RuntimeError:
        log.exception("unexpected")
    listener.log.warning("a structured line", token=made.token, pem=keys.key_to_pem(key).decode())
    written = log_file.read_text() + capsys.readouterr().err + every_row() + "\n".join(errors)
    assert "enrollment refused" in written
    for secret in secrets:
        assert secret not in written
    assert "PRIVATE KEY" not in written
    row = store.master()
    for pem in (store.client_identity(row).key_pem, store.enroll_identity(row, ()).key_pem):
        for line in pem.decode().splitlines()[1:-1]:
            assert line not in written


def test_a_request_does_not_show_its_token_when_it_is_refused_for_its_shape():
    made = tokens.create("pc-1", actor=OPERATOR)
    body = request_for(made.token, "pc-1", keys.new_key()).to_wire() | {"port": "many"}
    with pytest.raises(Exception) as caught:  # noqa: PT011
        read_enroll_request(json.dumps(body).encode())
    chain = [caught.value, caught.value.__cause__, caught.value.__context__]
    assert caught.value.__suppress_context__
    assert made.token not in str([str(error) for error in chain[:2]])
