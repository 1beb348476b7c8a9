"""The running set of each node: what ran there by its owner's wish, so that a reboot of the machine does not end it.

A set belongs to one machine (its uid) and one boot. What was starting or ready in an earlier boot of the same machine,
is still wanted, and is seen stopped in the present one waits to be started again. An ordinary reconnect changes no
boot, so it starts nothing.
"""

from collections.abc import Collection, Iterable
from uuid import UUID

from django.db.models import Q

from agent.wire.instances import InstanceState
from mirbad.kernel import clock
from models_app.models import MaintenanceWindow, Placement, RunningIntent
from models_app.states import FAILED, RUNNING, STOPPED
from nodes import conditions
from nodes.models import Node, NodeCondition

SOURCE = "running-set"
UNREADABLE = "running_set_unreadable"

_UUID = r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"


def learn(running: Iterable[tuple[Placement, str]], stopped: Iterable[tuple[Placement, str]]) -> None:
    """Take what was seen into the sets, in the caller's transaction: `(placement, boot id)` of each change.

    `running` are starting or ready. A stop in the boot in which it ran takes a model out, unless a maintenance window
    is open over it: such stops are for a while.
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
    """They failed, or were stopped on purpose: nothing starts them again by itself. In the caller's transaction."""
    RunningIntent.objects.filter(placement_id__in=placement_ids).delete()


def ask(placements: Iterable[Placement], cause: str) -> None:
    """Let them be started once their nodes can do it, in the caller's transaction. `cause` is asked or autostart."""
    rows = list(placements)
    uids = dict(Node.objects.filter(pk__in={row.node_id_text for row in rows}).values_list("pk", "uid"))
    now = clock.now()
    _put(
        RunningIntent(placement=row, node_uid=str(uids.get(row.node_id_text, "")), boot_id="", cause=cause, since=now)
        for row in rows
    )


def pending() -> list[RunningIntent]:
    """What waits to be started, by node and then the longest waiting first; two statements.

    Only on machines that serve now, and that said in their present boot that it does not run. A node with a set that
    cannot be read starts nothing by itself.
    """
    nodes = {row[0]: row[1:] for row in Node.objects.serving().values_list("pk", "uid", "boot_id", "draining")}
    broken = set(Node.objects.filter(conditions__source=SOURCE).values_list("pk", flat=True))
    rows = RunningIntent.objects.select_related("placement__model__hold").filter(
        # The shards of a replica start together, and by another loop.
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
        if placement.observed_boot in ("", boot_id) and _is_due(intent, boot_id):
            found.append(intent)
    return found


def note_unreadable() -> frozenset[str]:
    """Say of each node whose set cannot be read that nothing is started there by itself; their ids.

    Taken back once the rows can be read again, as they can after a start by hand.
    """
    rows = RunningIntent.objects.filter(
        Q(cause=RunningIntent.SEEN, boot_id="") | ~Q(cause__in=RunningIntent.CAUSES) | ~Q(node_uid__regex=_UUID)
    )
    bad: dict[str, list[str]] = {}
    for node_id, model_id in rows.order_by("placement__model_id").values_list(
        "placement__node_id_text", "placement__model_id"
    ):
        bad.setdefault(node_id, []).append(model_id)
    said = set(NodeCondition.objects.filter(source=SOURCE).values_list("node_id", flat=True))
    for node_id in sorted(said | set(Node.objects.filter(pk__in=bad).values_list("pk", flat=True))):
        conditions.replace(node_id, SOURCE, [_condition(bad[node_id])] if node_id in bad else [])
    return frozenset(bad)


def _is_due(intent: RunningIntent, boot_id: str) -> bool:
    if intent.cause == RunningIntent.AUTOSTART:
        return True
    # What failed is not tried again, but once when the master comes up and the model is marked to come with it.
    if intent.placement.observed != STOPPED or intent.cause == RunningIntent.ASKED:
        return intent.placement.observed == STOPPED
    # A node that is a container restarts within one boot of its machine; its agent says then that the engine was lost.
    lost = intent.placement.observed_view.get("state") == InstanceState.LOST.value
    return intent.boot_id != boot_id or lost


def _condition(model_ids: list[str]) -> conditions.Condition:
    names = ", ".join(repr(model_id) for model_id in model_ids[:5])
    text = (
        f"What ran on this node cannot be read (see {names}), so nothing is started here by itself after a reboot. "
        "Stop and start these models: that writes it anew."
    )
    return conditions.Condition(UNREADABLE, text)


def _put(rows: Iterable[RunningIntent]) -> None:
    RunningIntent.objects.bulk_create(
        rows,
        update_conflicts=True,
        unique_fields=["placement"],
        update_fields=["node_uid", "boot_id", "cause", "since"],
    )
