"""The worker: runs the due steps of one operation."""

import contextlib
import os
import secrets
import socket

import structlog
from django.db import IntegrityError, transaction

from audit import log as audit_log
from jobs import leases, ledger
from jobs.base import STEP, AnyKind, NodeRequest, Outcome, Wait
from jobs.errors import LeaseLost, StepFailed
from jobs.kinds import CONTINUE_FENCED, KINDS
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
    """Do due steps until none is due now, and return how many. An operation that waits is enqueued again."""
    done = 0
    while done < _STAGES_IN_ONE_GO:
        pause = run_step(operation_id)
        if pause is None:
            return done
        done += 1
        if pause > 0:
            STEP.enqueue(operation_id, pause)
            return done
    STEP.enqueue(operation_id)
    return done


def run_step(operation_id: str) -> float | None:
    """Do one step: claim, effect, write. Return the seconds until the next is due; None when there is none for us."""
    if fencing.is_fenced() and not _continues_fenced(operation_id):
        return None
    claimed = ledger.claim(operation_id, _owner())
    if claimed is None:
        return None
    kind = KINDS[claimed.kind]
    with structlog.contextvars.bound_contextvars(operation=claimed.pk, kind=claimed.kind, stage=claimed.stage):
        result = _effect(claimed, kind)
        try:
            if isinstance(result, StepFailed):
                return ledger.write_failure(claimed, result, kind)
            pause = ledger.write(claimed, result, kind)
        except LeaseLost:
            log.info("another worker has claimed the operation")
            return None
        if isinstance(result, Wait):
            for request in result.requests:
                _open(request)
        return pause


def _open(request: NodeRequest) -> None:
    kind = KINDS[request.kind]
    with contextlib.suppress(IntegrityError), transaction.atomic():
        subject = ledger.Subject("node", request.node_id, request.node_id)
        operation = ledger.create(kind, request.stage, subject, _PKI, request.text, request.input)
        audit_log.record(request.action, _PKI, node_id=request.node_id, operation_id=operation.pk, result="accepted")


def _effect(claimed: Operation, kind: AnyKind) -> Outcome | StepFailed:
    try:
        stage = kind.stage(claimed.stage)
        with leases.kept(claimed) if stage.long else contextlib.nullcontext():
            return stage.run(kind.step(claimed))
    except StepFailed as failure:
        return failure
    except MasterFenced as error:
        # It waits for the takeover; no request is lost by it.
        return StepFailed(error.code, error.detail, final=False)
    except MirbadError as error:
        final = not error.retryable or claimed.attempt + 1 >= _ERROR_TRIES
        return StepFailed(error.code, error.detail, final=final)
    except Exception:
        # The edge of every step: any other error is a fault of ours, is logged whole, and ends the operation only
        # when it happens again and again.
        log.exception("unexpected error in a step")
        text = "Internal error; see the master's log."
        return StepFailed("internal", text, final=claimed.attempt + 1 >= _ERROR_TRIES)


def _continues_fenced(operation_id: str) -> bool:
    name = Operation.objects.filter(pk=operation_id).values_list("kind", flat=True).first()
    return name in CONTINUE_FENCED


def _owner() -> str:
    return f"{socket.gethostname()[:40]}:{os.getpid()}:{secrets.token_hex(8)}"
