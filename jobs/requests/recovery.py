"""Starts of placements by the master itself: after a reboot of their machine, or when the master starts.

Each is an ordinary launch, with the node's own memory check. A final refusal is recorded once and sets the model to
stopped, so that nothing is tried for ever.
"""

from django.db import IntegrityError, transaction

from audit import log as audit_log
from jobs import ledger
from jobs.kinds import launch
from jobs.models import Operation
from jobs.queries import open_operation, unfinished
from mirbad.kernel.actor import Actor
from mirbad.kernel.errors import MirbadError
from models_app import holds, registry
from models_app.models import Placement
from models_app.placement import apply, fit_preview
from models_app.states import RUNNING
from nodes import fencing
from nodes import queries as node_queries


def launch_again(placement: Placement, actor: Actor, why: str, *, even_held: bool = False) -> Operation | None:
    """Open the launch of `placement`; None when it is not to run any more, or another operation acts on it.

    `even_held` ignores a hold: a stale one must not keep a model down for ever. Raises ModelBusy, MasterFenced,
    NodeOffline and the other temporary states of a node; a final refusal is written as the failure of the start.
    """
    try:
        with transaction.atomic():
            return _open(placement, actor, why, even_held=even_held)
    except IntegrityError:
        return None
    except MirbadError as error:
        if error.retryable or error.code in _PASSING:
            raise
        _give_up(placement, actor, error)
        return None


# These are not retryable by the same request, but pass by themselves or by an action on the node.
_PASSING = frozenset({"model_busy", "master_fenced", "node_draining", "node_offline", "node_incompatible"}) | {
    "node_pending_takeover",
    "models_root_changed",
}


def _open(placement: Placement, actor: Actor, why: str, *, even_held: bool) -> Operation | None:
    fencing.require_unfenced()
    if even_held:
        holds.require_known(placement.model_id)
        if is_being_placed(placement.model_id):
            return None
    else:
        holds.require_free(placement.model_id)
    row = Placement.objects.select_for_update().select_related("model").filter(pk=placement.pk, desired=RUNNING).first()
    if row is None or open_operation("run", "placement", str(row.pk)) is not None:
        return None
    node = node_queries.require_placeable(row.node_id_text)
    if row.model.reads_weights:
        node_queries.require_models_root(node)
    spec = registry.launch_spec(row, node)
    apply.set_desired_running(row, spec.config_hash, fit_preview.promise_of(spec.estimate, row.gpu_uuids, node))
    # What a person started in spite of its fit starts again, unless it was changed since.
    forced = row.confirmed_config_hash == spec.config_hash
    data = launch.LaunchInput(generation=row.generation, force=forced, restart=False)
    subject = ledger.Subject("placement", str(row.pk), row.node_id_text, row.model_id)
    operation = ledger.create(launch.KIND, launch.CHECKING, subject, actor, why, data)
    audit_log.record(
        "model.start",
        actor,
        node_id=row.node_id_text,
        model_id=row.model_id,
        operation_id=operation.pk,
        result="accepted",
        detail=why,
    )
    return operation


def is_being_placed(model_id: str) -> bool:
    """Return whether an open operation moves or unplaces the model: then that one decides about its start."""
    return unfinished().filter(concurrency_group="placement", target_kind="model", target_id=model_id).exists()


def _give_up(placement: Placement, actor: Actor, error: MirbadError) -> None:
    with transaction.atomic():
        row = Placement.objects.filter(pk=placement.pk).first()
        if row is not None:
            apply.set_desired_stopped(row, halted=f"It cannot be started: {error.detail}")
            audit_log.record(
                "model.start",
                actor,
                node_id=row.node_id_text,
                model_id=row.model_id,
                result="failed",
                error_code=error.code,
                detail=error.detail,
            )
