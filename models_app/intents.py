"""The running set of each node: the models that start again after a reboot of the machine.

A set belongs to one machine (its uid) and one boot. A model that was starting or ready in an earlier boot of the same
machine, is still desired, and is observed stopped in the present boot is pending. A reconnect without a reboot changes
no boot id, so it starts nothing.
"""

from collections.abc import Collection, Iterable
from uuid import UUID

from django.db.models import Q

from agent.wire.instances import InstanceState
from mirbad.kernel import clock
from models_app.models import MaintenanceWindow, Placement, RunningIntent
from models_app.states import FAILED, RUNNING, STOPPED
from nodes import conditions, queries
from nodes.models import Node, NodeCondition

SOURCE = "running-set"
UNREADABLE = "running_set_unreadable"

_UUID = r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"


def learn(running: Iterable[tuple[Placement, str]], stopped: Iterable[tuple[Placement, str]]) -> None:
    """Update the sets from observations, in the caller's transaction: `(placement, boot id)` of each change.

    `running` are starting or ready. A stop in the boot in which the model ran removes it, unless a maintenance window
    is open: such stops are temporary.
    """
    began = {placement.pk: (placement, boot) for placement, boot in running}
    if began:
        nodes = {placement.node_id_text for placement, _ in began.values()}
        uids = dict(Node.objects.filter(pk__in=nodes).values_list("pk", "uid"))
        now = clock.now()
        rows = [
            RunningIntent(
                placement=placement,
                node_uid=str(uids.get(placement.node_id_text, "")),
                boot_id=boot,
                cause=RunningIntent.SEEN,
                since=now,
            )
            for placement, boot in began.values()
        ]
        _put(rows)
    ended = [(placement, boot) for placement, boot in stopped if placement.pk not in began]
    if not ended:
        return
    paused = set(MaintenanceWindow.objects.values_list("node_id_text", flat=True))
    for placement, boot in ended:
        if "" not in paused and placement.node_id_text not in paused:
            RunningIntent.objects.filter(placement=placement, cause=RunningIntent.SEEN, boot_id=boot).delete()


def forget(placement_ids: Collection[UUID]) -> None:
    """Remove placements that failed or were stopped on purpose from the sets, in the caller's transaction."""
    RunningIntent.objects.filter(placement_id__in=placement_ids).delete()


def ask(placements: Iterable[Placement], cause: str) -> None:
    """Add placements that start once their nodes can, in the caller's transaction. `cause` is asked or autostart."""
    rows = list(placements)
    uids = dict(Node.objects.filter(pk__in={row.node_id_text for row in rows}).values_list("pk", "uid"))
    now = clock.now()
    _put(
        RunningIntent(placement=row, node_uid=str(uids.get(row.node_id_text, "")), boot_id="", cause=cause, since=now)
        for row in rows
    )


def pending() -> list[RunningIntent]:
    """Return the pending starts, by node and then the oldest first; two queries.

    Only on machines that serve now and that reported the model as not running in their present boot. A node whose set
    cannot be read starts nothing automatically; one whose models disk is not there starts nothing that reads it.
    """
    serving = Node.objects.serving().values_list("pk", "uid", "boot_id", "draining", "warnings")
    nodes = {pk: (uid, boot_id, draining) for pk, uid, boot_id, draining, _ in serving}
    diskless = {row[0] for row in serving if queries.models_root_problem(row[4])}
    broken = set(Node.objects.filter(conditions__source=SOURCE).values_list("pk", flat=True))
    rows = RunningIntent.objects.select_related("placement__model__hold").filter(
        # The shards of a replica start together, by another loop.
        placement__desired=RUNNING,
        placement__observed__in=(STOPPED, FAILED),
        placement__shards=1,
    )
    found = []
    for intent in rows.order_by("placement__node_id_text", "since", "placement__created_at"):
        placement = intent.placement
        uid, boot_id, draining = nodes.get(placement.node_id_text, (None, "", True))
        if draining or placement.node_id_text in broken or str(uid) != intent.node_uid:
            continue
        if placement.node_id_text in diskless and placement.model.reads_weights:
            continue
        if placement.observed_boot in ("", boot_id) and _is_due(intent, boot_id):
            found.append(intent)
    return found


def note_unreadable() -> frozenset[str]:
    """Write a condition on each node whose set cannot be read; return their ids.

    The condition is removed once the rows can be read again, for instance after a manual start.
    """
    rows = RunningIntent.objects.filter(
        Q(cause=RunningIntent.SEEN, boot_id="") | ~Q(cause__in=RunningIntent.CAUSES) | ~Q(node_uid__regex=_UUID)
    )
    bad: dict[str, list[str]] = {}
    for node_id, model_id in rows.order_by("placement__model_id").values_list(
        "placement__node_id_text", "placement__model_id"
    ):
        bad.setdefault(node_id, []).append(model_id)
    reported = set(NodeCondition.objects.filter(source=SOURCE).values_list("node_id", flat=True))
    for node_id in sorted(reported | set(Node.objects.filter(pk__in=bad).values_list("pk", flat=True))):
        conditions.replace(node_id, SOURCE, [_condition(bad[node_id])] if node_id in bad else [])
    return frozenset(bad)


def _is_due(intent: RunningIntent, boot_id: str) -> bool:
    if intent.cause == RunningIntent.AUTOSTART:
        return True
    # A failed model is not started again, except once when the master starts and the model is marked to start with it.
    if intent.placement.observed != STOPPED or intent.cause == RunningIntent.ASKED:
        return intent.placement.observed == STOPPED
    # A node in a container restarts within one boot of its machine; its agent then reports the engine as lost.
    lost = intent.placement.observed_view.get("state") == InstanceState.LOST.value
    return intent.boot_id != boot_id or lost


def _condition(model_ids: list[str]) -> conditions.Condition:
    names = ", ".join(repr(model_id) for model_id in model_ids[:5])
    text = (
        f"The running set of this node cannot be read (see {names}), so no model starts here after a reboot. "
        "Stop and start these models to write it again."
    )
    return conditions.Condition(UNREADABLE, text)


def _put(rows: Iterable[RunningIntent]) -> None:
    RunningIntent.objects.bulk_create(
        rows,
        update_conflicts=True,
        unique_fields=["placement"],
        update_fields=["node_uid", "boot_id", "cause", "since"],
    )
