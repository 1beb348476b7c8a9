"""Runs the due steps of one operation. It stands between those who request and the kinds that do."""

import contextlib
import os
import secrets
import socket

import structlog
from django.db import IntegrityError, transaction

from audit import log as audit_log
from jobs import ledger
from jobs.base import STEP, Ask, Kind, Outcome, Step, Wait
from jobs.errors import LeaseLost, StepFailed
from jobs.kinds import GO_ON_FENCED, KINDS
from jobs.models import Operation
from mirbad.kernel.actor import system
from mirbad.kernel.errors import MirbadError
from nodes import fencing
from nodes.errors import MasterFenced

log = structlog.get_logger(__name__)

_PKI = system("pki")
_ERROR_TRIES = 6
_STAGES_IN_ONE_GO = 20


def run(operation_id: str) -> int:
    """Take due steps until none is due now; how many were done. A step that waits is rung for again."""
    done = 0
    while done < _STAGES_IN_ONE_GO:
        pause = run_step(operation_id)
        if pause is None:
            return done
        done += 1
        if pause > 0:
            STEP.ring(operation_id, pause)
            return done
    STEP.ring(operation_id)
    return done


def run_step(operation_id: str) -> float | None:
    """One step: claim, effect, write. The seconds until the next is due; None when there is none for us."""
    if fencing.is_fenced() and not _goes_on_fenced(operation_id):
        return None
    step = ledger.claim(operation_id, _owner())
    if step is None:
        return None
    kind = KINDS[step.kind]
    with structlog.contextvars.bound_contextvars(operation=step.operation_id, kind=step.kind, stage=step.stage):
        answer = _effect(step, kind)
        try:
            if isinstance(answer, StepFailed):
                return ledger.write_failure(step, answer, kind)
            pause = ledger.write(step, answer, kind)
        except LeaseLost:
            log.info("another worker has taken over")
            return None
        if isinstance(answer, Wait):
            for ask in answer.asks:
                _open(ask)
        return pause


def _open(ask: Ask) -> None:
    kind = KINDS[ask.kind]
    with contextlib.suppress(IntegrityError), transaction.atomic():
        subject = ledger.Subject("node", ask.node_id, ask.node_id)
        operation = ledger.create(kind, ask.stage, subject, _PKI, ask.text, ask.input)
        audit_log.record(ask.action, _PKI, node_id=ask.node_id, operation_id=operation.pk, result="accepted")


def _effect(step: Step, kind: Kind) -> Outcome | StepFailed:
    try:
        return kind.stages[step.stage](step)
    except StepFailed as failure:
        return failure
    except MasterFenced as error:
        # It waits for the takeover; nothing that was asked for is lost by it.
        return StepFailed(error.code, error.detail, final=False)
    except MirbadError as error:
        final = not error.retryable or step.attempt + 1 >= _ERROR_TRIES
        return StepFailed(error.code, error.detail, final=final)
    except Exception:
        # The edge of every step: whatever went wrong is a fault of ours, is logged whole, and ends the operation
        # only when it goes wrong again and again.
        log.exception("a step failed with an error that nobody foresaw")
        text = "Something went wrong inside the master; its log has the details."
        return StepFailed("internal", text, final=step.attempt + 1 >= _ERROR_TRIES)


def _goes_on_fenced(operation_id: str) -> bool:
    name = Operation.objects.filter(pk=operation_id).values_list("kind", flat=True).first()
    return name in GO_ON_FENCED


def _owner() -> str:
    return f"{socket.gethostname()[:40]}:{os.getpid()}:{secrets.token_hex(8)}"
