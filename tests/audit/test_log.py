"""Audit lines: redaction, limits, the caller's transaction, refusals."""

import pytest
from django.db import transaction

from audit import log
from audit.models import AuditLine
from mirbad.kernel import actor
from mirbad.kernel.errors import Conflict, Unavailable

pytestmark = [pytest.mark.app, pytest.mark.django_db]

CANARIES = (
    "ssk_" + "A" * 43,
    "hf_" + "b" * 34,
    "mbt_" + "c1" * 20,
    "dGhpcyBpcyBhIHZlcnkgbG9uZyBiYXNlNjR1cmwgcnVu_-x",
    "hunter2hunter2",
    "MIIEvQIBADANBgkqhkiG9w0BAQ",
)


def all_text() -> str:
    return "\n".join(str(value) for row in AuditLine.objects.values_list() for value in row)


def test_no_secret_reaches_a_line_through_any_text():
    ssk, hf, mbt, run, password, pem = CANARIES
    detail = (
        f"key {ssk} token {hf} admin {mbt} run {run} password={password} "
        f"-----BEGIN PRIVATE KEY-----\n{pem}\n-----END PRIVATE KEY-----"
    )
    log.record("api-key", actor.CONFIG, target=f"token: {password}", detail=detail, operation_id=ssk[:40])
    written = all_text()
    for canary in CANARIES:
        assert canary not in written
    assert "***" in written


def test_a_secret_across_the_columns_end_is_taken_out_before_it_is_cut():
    log.record("job", actor.CONFIG, detail="x" * 1990 + " ssk_" + "Z" * 43)
    assert "ssk_Z" not in AuditLine.objects.get().detail


def test_a_fingerprint_stays_readable():
    spki = "0123456789abcdef" * 4
    log.record("node.approve", actor.CONFIG, detail=spki)
    assert spki in AuditLine.objects.get().detail


def test_a_line_stands_only_with_the_change_that_it_tells_of():
    def change():
        with transaction.atomic():
            log.record("model.create", actor.CONFIG, model_id="m")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        change()
    assert not AuditLine.objects.exists()


def test_hostile_names_neither_break_the_change_nor_the_line():
    log.record("login", actor.CONFIG, target="a\0b\ud800" + "c" * 5000)
    line = AuditLine.objects.get()
    assert len(line.target) == 200
    assert "\0" not in line.target


def test_an_unknown_action_or_result_is_a_mistake_of_the_caller():
    with pytest.raises(ValueError, match="audit/actions"):
        log.record("model.explode", actor.CONFIG)
    with pytest.raises(ValueError, match="result"):
        log.record("job", actor.CONFIG, result="perhaps")


def test_a_refusal_is_written_once_and_the_error_goes_on():
    with (
        pytest.raises(Conflict),
        log.refusals_recorded("node.drain", actor.CONFIG, node_id="pc-1"),
        log.refusals_recorded("node.drain", actor.CONFIG, node_id="pc-1"),
    ):
        raise Conflict("The node is gone.")
    line = AuditLine.objects.get()
    assert (line.result, line.error_code, line.node_id_text) == ("refused", "invalid_state", "pc-1")


def test_a_part_that_is_away_makes_a_failed_line_not_a_refused_one():
    log.record_refusal("model.start", actor.CONFIG, Unavailable("The broker is away."))
    assert AuditLine.objects.get().result == "failed"
