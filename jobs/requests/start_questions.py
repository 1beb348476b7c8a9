"""The question before a start that does not fit, or that serves slowly: one rule for pages and API."""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from audit import log as audit_log
from mirbad.kernel.actor import Actor
from mirbad.kernel.errors import NotFound
from models_app import queries
from models_app.fit.verdict import FitState
from models_app.placement import fit_preview
from models_app.placement.fit_preview import FitPreview
from nodes.errors import ConfirmationRequired

_MEMORY = "memory_short"
_SPEED = "slow_on_cpu"


def find(model_id: str, *, replica: UUID | None = None, restart: bool = False) -> tuple[FitPreview, ...]:
    """Return the previews that a person confirms before this start; the start itself refuses unknown models."""
    try:
        return fit_preview.before_start(queries.one_model(model_id), replica=replica, restart=restart)
    except NotFound:
        return ()


def is_short(fits: Iterable[FitPreview]) -> bool:
    """Return whether the memory of one of `fits` is short, so that a start must skip the node's check."""
    return any(fit.state is FitState.DOES_NOT_FIT for fit in fits)


def answered(model_id: str, actor: Actor, *, confirm: bool, replica: UUID | None = None, restart: bool = False) -> bool:
    """Return whether a start by a program skips the node's memory check: it was confirmed, and memory is short.

    Raises ConfirmationRequired with the figures of each GPU and of the host when there is a question and no `confirm`.
    """
    fits = find(model_id, replica=replica, restart=restart)
    if fits and not confirm:
        with audit_log.refusals_recorded("model.restart" if restart else "model.start", actor, model_id=model_id):
            raise _question(model_id, fits)
    return is_short(fits)


def _question(model_id: str, fits: tuple[FitPreview, ...]) -> ConfirmationRequired:
    problems = [
        {"code": _MEMORY if fit.state is FitState.DOES_NOT_FIT else _SPEED, "message": text, "field": fit.node_id}
        for fit in fits
        for text in fit.questions
    ]
    text = f'{problems[0]["message"]} To start model {model_id!r} all the same, send "confirm": true.'
    return ConfirmationRequired(text, problems=problems, fields={"fits": [_figures(fit) for fit in fits]})


def _figures(fit: FitPreview) -> dict[str, Any]:
    return {
        "nodeId": fit.node_id,
        "state": fit.state.value,
        "cpuTokensPerSecond": fit.tokens_per_second,
        "lines": [
            {
                "name": line.capacity.label,
                "gpuUuid": line.capacity.uuid or None,
                "neededBytes": line.need,
                "usableBytes": line.capacity.usable,
                "missingBytes": line.missing,
                "state": line.state.value,
            }
            for line in fit.verdict.lines
        ],
    }
