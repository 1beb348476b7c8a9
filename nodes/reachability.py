"""The only writer of observed node columns. Every write is one conditional UPDATE: an older report never wins."""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta

import structlog
from django.db import transaction
from django.db.models import Q, QuerySet

from agent.common import reason
from agent.wire.capability import UNNAMED_GPU as UNNAMED
from agent.wire.capability import AgentInfo, Capabilities
from agent.wire.fence import Claim, MalformedClaim, well_formed
from agent.wire.status import NodeStatus
from mirbad.kernel import bulk, clock
from mirbad.kernel.guarded import try_transition
from mirbad.live import invalidations
from nodes import conditions, fencing
from nodes.capability import gpu_rows, problems
from nodes.models import Gpu, Node, NodeCondition
from nodes.states import APPROVED, FENCED, INCOMPATIBLE, OFFLINE, ONLINE, PENDING, REACHABILITY, UNKNOWN

log = structlog.get_logger(__name__)

OFFLINE_AFTER = timedelta(seconds=15)
MACHINE = "machine"
"""The source of the condition that two machines have one key."""
REFUSED_REMEDY = "Stop that master, then continue the takeover for this node. Without such a master, revoke the node."
_REASON_LENGTH = 500
_STATUS_COLUMNS = (
    "boot_id", "seq", "last_seen_at", "status_at", "host", "warnings", "engines", "held_epoch", "held_instance",
)  # fmt: skip
_MOST_ENGINES = 200


def observe_contact(node_id: str, word: AgentInfo | NodeStatus) -> bool:
    """Record that the node responded with `word`; return whether that changed anything.

    An approved node is then online, unless it is incompatible or obeys another claim: it stays so until `accepted`. A
    pending one is merely not offline any more.
    """
    held = _claim_columns(word.held_claim)
    row = Node.objects.filter(pk=node_id)
    row.update(last_seen_at=clock.now(), **held)
    online = _move(row.filter(lifecycle=APPROVED, reachability__in=(UNKNOWN, OFFLINE)), node_id, ONLINE, "")
    return online or _move(row.filter(lifecycle=PENDING, reachability=OFFLINE), node_id, UNKNOWN, "")


def accepted(node_id: str) -> bool:
    """Record that the node passed every check of a fresh connection, our claim included; return whether its state
    changed.
    """
    Node.objects.filter(pk=node_id).update(
        last_seen_at=clock.now(), takeover_id="", takeover_epoch=None, refused_instance=""
    )
    return _move(Node.objects.filter(pk=node_id).exclude(reachability=ONLINE), node_id, ONLINE, "")


def lost(node_id: str, reason: str) -> bool:
    """Record a lost contact: Offline once the last contact is 15 seconds old; return whether it became so now.

    A node that is Offline takes the newer reason. Incompatible and fenced nodes keep their state: it is more specific
    than offline. A last contact in the future was before the clock was set back.
    """
    now = clock.now()
    ahead = Q(last_seen_at__gt=now + OFFLINE_AFTER)
    silent = Node.objects.filter(Q(last_seen_at=None) | Q(last_seen_at__lte=now - OFFLINE_AFTER) | ahead, pk=node_id)
    offline = Node.objects.filter(pk=node_id, reachability=OFFLINE)
    if offline.exclude(reachability_reason=reason[:_REASON_LENGTH]).update(reachability_reason=reason[:_REASON_LENGTH]):
        log.info("a node is offline for another reason", node=node_id, reason=reason)
        transaction.on_commit(lambda: invalidations.changed("nodes", node_id))
    return _move(silent.filter(reachability__in=(UNKNOWN, ONLINE)), node_id, OFFLINE, reason)


def refused(node_id: str, kind: str, detail: str) -> bool:
    """Record that the node responded and cannot be used: `kind` is ``incompatible`` or ``fenced``. Return whether it is
    new.
    """
    if kind not in {INCOMPATIBLE, FENCED}:
        raise ValueError(f"{kind!r} is not a kind of refusal")
    Node.objects.filter(pk=node_id).update(last_seen_at=clock.now())
    known = Node.objects.filter(pk=node_id).exclude(reachability=kind, reachability_reason=detail[:_REASON_LENGTH])
    return _move(known, node_id, kind, detail)


def refused_claim(node_id: str, claim: Claim, held: Claim | MalformedClaim | None) -> str:
    """Record that the node refused `claim` since it obeys `held`, and fence this master when enough nodes did.

    Only a takeover or its continuation reclaims the node. Return the reason why the node's report is not believed,
    which makes it Incompatible; empty when it is.
    """
    with transaction.atomic():
        # Of two refusals at the same moment the later one counts both.
        fencing.lock()
        rows = Node.objects.filter(pk=node_id)
        if isinstance(held, Claim):
            rows.update(**_claim_columns(held))
        reason = fencing.disbelief_of_refusal(held, claim)
        if reason:
            refused(node_id, INCOMPATIBLE, reason)
        elif isinstance(held, Claim):
            rows.filter(takeover_epoch=None).update(takeover_id=fencing.last_takeover(), takeover_epoch=claim.epoch)
            text = f"It refused epoch {claim.epoch} of this master and obeys epoch {held.epoch} of another one. "
            refused(node_id, FENCED, text + REFUSED_REMEDY)
        if fencing.is_refusal(held, claim):
            rows.update(refused_instance=claim.instance_id)
            fencing.fence_if_refused(claim)
    return reason


def left_out(node_ids: Collection[str], takeover_id: str, epoch: int) -> int:
    """Record that a takeover to `epoch` did not reach these nodes; return how many, in one statement.

    In the caller's transaction. Each waits until it returns. A node that is unusable for another reason keeps that
    state.
    """
    rows = Node.objects.filter(pk__in=node_ids, lifecycle=APPROVED)
    marked = rows.update(takeover_id=takeover_id, takeover_epoch=epoch)
    text = f"Unreachable during takeover {takeover_id}. It reconnects automatically unless another master has taken it."
    rows.filter(reachability__in=REACHABILITY.sources(FENCED)).exclude(reachability=INCOMPATIBLE).update(
        reachability=FENCED, reachability_reason=text
    )
    transaction.on_commit(lambda: invalidations.changed("nodes"))
    return marked


def claimed(node_id: str, claim: Claim) -> bool:
    """Record that the node accepted `claim`: an earlier block is over, and the next connection sets the state."""
    rows = Node.objects.filter(pk=node_id)
    rows.update(
        last_seen_at=clock.now(), takeover_id="", takeover_epoch=None, refused_instance="", **_claim_columns(claim)
    )
    return _move(rows.filter(reachability=FENCED), node_id, UNKNOWN, "")


def observe_info(node_id: str, info: AgentInfo, protocol: int | None) -> None:
    """Record ``info``: version, the protocol in common (None: none), the held claim, the certificate."""
    not_after = _time(info.cert_not_after)
    Node.objects.filter(pk=node_id).update(
        agent_version=info.agent_version[:40],
        protocol=protocol,
        cert_not_after=not_after,
        **_claim_columns(info.held_claim),
    )
    conditions.note_certificate(node_id, not_after)
    conditions.note_clock(node_id, _time(info.time or ""))


def observe_status(node_id: str, status: NodeStatus) -> bool:
    """Record `status` if it is newer than the stored one (another boot, or a higher seq); return whether it was."""
    newer = Node.objects.filter(~Q(boot_id=status.boot_id) | Q(seq__lt=status.seq), pk=node_id)
    updated = newer.update(**dict(zip(_STATUS_COLUMNS, _status_values(status, clock.now()), strict=True)))
    if not updated:
        return False
    _observe_gpus(node_id, status)
    transaction.on_commit(lambda: invalidations.changed("nodes", node_id))
    return True


def observe_many(words: Mapping[str, tuple[NodeStatus | None, datetime]]) -> frozenset[str]:
    """Record reports of many nodes at once: the last status of each, if there was one, and the time of its last
    contact.

    The same as `observe_status` and `observe_contact` for each, in one transaction and a number of reads that does not
    grow with the nodes. Return the nodes that are then Online.
    """
    with transaction.atomic():
        # Locked in the order of their keys, as in every writer of many rows; newer is decided under the lock.
        rows = list(
            Node.objects.select_for_update()
            .filter(pk__in=words)
            .order_by("pk")
            .values_list("pk", "lifecycle", "reachability", "boot_id", "seq")
        )
        newer: dict[str, NodeStatus] = {}
        for pk, _, _, boot_id, seq in rows:
            status = words[pk][0]
            if status is not None and (boot_id != status.boot_id or seq < status.seq):
                newer[pk] = status
        bulk.update_each(
            Node, ("last_seen_at",), [(row[0], (words[row[0]][1],)) for row in rows if row[0] not in newer]
        )
        bulk.update_each(Node, _STATUS_COLUMNS, [(pk, _status_values(newer[pk], words[pk][1])) for pk in newer])
        _observe_many_gpus(newer)
        online = {pk for pk, _, reachability, _, _ in rows if reachability == ONLINE}
        back = [row[0] for row in rows if row[1] == APPROVED and row[2] in (UNKNOWN, OFFLINE)]
        online.update(pk for pk in back if _move(Node.objects.filter(pk=pk, lifecycle=APPROVED), pk, ONLINE, ""))
        transaction.on_commit(lambda: invalidations.changed_many("nodes", newer))
    return frozenset(online)


def observe_capabilities(node_id: str, caps: Capabilities, seq: int = 0) -> None:
    """Record the node's capabilities, and its GPUs as rows. `seq` is the `capabilities_seq` of the status that led
    here.

    A GPU that is gone keeps its row (reserves and placements name it) and is marked absent.
    """
    with transaction.atomic():
        Node.objects.filter(pk=node_id).update(capabilities=caps.to_wire(), capabilities_seq=seq)
        known = {gpu.uuid: gpu for gpu in Gpu.objects.filter(node_id=node_id)}
        rows = gpu_rows(caps)
        reported = {row.uuid for row in rows}
        fresh = [Gpu(node_id=node_id, uuid=row.uuid, **row.columns()) for row in rows if row.uuid not in known]
        Gpu.objects.bulk_create(fresh, ignore_conflicts=True)
        for row in rows:
            gpu = known.get(row.uuid)
            if gpu is None:
                continue
            if not gpu.present or any(getattr(gpu, name) != value for name, value in row.columns().items()):
                Gpu.objects.filter(pk=gpu.pk).update(present=True, **row.columns())
        gone = [gpu.pk for gpu in known.values() if gpu.present and gpu.uuid not in reported]
        if gone:
            # A card without a UUID was named after its number: nothing else can name it, and this is another card now.
            Gpu.objects.filter(pk__in=gone, uuid__startswith=UNNAMED).delete()
            Gpu.objects.filter(pk__in=gone).update(present=False, seen={})
        conditions.replace(
            node_id,
            "capability",
            [conditions.Condition(code, detail, subject) for code, subject, detail in problems(caps)],
        )
        transaction.on_commit(lambda: invalidations.changed("nodes", node_id))


def same_machine(node_id: str, machine_id_hash: str) -> bool:
    """Return whether one machine alone presented the node's key; the first machine that presents it is recorded.

    Once two have, this is False for both of them until the node gets another key: the master cannot tell which one is
    real.
    """
    rows = Node.objects.filter(pk=node_id)
    if machine_id_hash and rows.filter(machine_id_hash="").update(machine_id_hash=machine_id_hash[:64]):
        return True
    known = rows.values_list("machine_id_hash", flat=True).first() or ""
    if machine_id_hash and known and known != machine_id_hash:
        text = "Two machines hold this node's key: a disk or a state folder was copied. Re-pair the one to keep."
        if conditions.replace(node_id, MACHINE, [conditions.Condition("key_on_two_machines", text)]):
            log.critical("two machines have the key of one node; neither is used", node=node_id)
        return False
    return not NodeCondition.objects.filter(node_id=node_id, source=MACHINE).exists()


def forget(node_id: str) -> None:
    """Reset the observations: the node has another key and perhaps another state folder, whose `seq` starts again."""
    conditions.replace(node_id, MACHINE, [])
    Node.objects.filter(pk=node_id).update(
        machine_id_hash="",
        boot_id="",
        seq=0,
        capabilities_seq=-1,
        held_epoch=None,
        held_instance="",
        refused_instance="",
    )


def _status_values(status: NodeStatus, heard_at: datetime) -> tuple[object, ...]:
    held = _claim_columns(status.held_claim)
    host, warnings, engines = status.host.to_wire(), _warnings(status), _engines(status)
    return (
        status.boot_id, status.seq, heard_at, heard_at, host, warnings, engines, held["held_epoch"],
        held["held_instance"],
    )  # fmt: skip


def _warnings(status: NodeStatus) -> list[dict[str, str]]:
    found = reason.paired(status.warnings, status.warning_codes)
    if isinstance(status.held_claim, MalformedClaim):
        text = f"The agent reports a claim that no master can hold (epoch {status.held_claim.shown_epoch})."
        found += (reason.Reason("claim_malformed", text),)
    return [{"code": warning.code[:40], "detail": warning} for warning in found]


def _engines(status: NodeStatus) -> list[dict[str, str]]:
    """Return the engines of the status, placed and others, without values that change all the time."""
    return [
        {"instanceId": view.instance_id[:64], "modelId": view.model_id[:64], "state": view.state}
        for view in status.instances[:_MOST_ENGINES]
    ]


def _observe_many_gpus(newer: Mapping[str, NodeStatus]) -> None:
    seen = {(node_id, gpu.uuid): gpu for node_id, status in newer.items() for gpu in status.gpus}
    rows = Gpu.objects.filter(node_id__in=newer, present=True).order_by("pk").values_list("pk", "node_id", "uuid")
    values = []
    for pk, node_id, uuid in rows:
        gpu = seen.get((node_id, uuid))
        values.append((pk, ({} if gpu is None else gpu.to_wire(),)))
    bulk.update_each(Gpu, ("seen",), values)


def _observe_gpus(node_id: str, status: NodeStatus) -> None:
    reported = {gpu.uuid: gpu.to_wire() for gpu in status.gpus}
    changed = []
    for gpu in Gpu.objects.filter(node_id=node_id, present=True):
        value = reported.get(gpu.uuid, {})
        if gpu.seen != value:
            gpu.seen = value
            changed.append(gpu)
    if changed:
        Gpu.objects.bulk_update(changed, ["seen"])


def _move(rows: QuerySet[Node], node_id: str, target: str, reason: str) -> bool:
    moved = try_transition(rows, REACHABILITY, "reachability", target, reachability_reason=reason[:_REASON_LENGTH])
    if moved:
        log.info("node reachability changed", node=node_id, reachability=target, reason=reason)
        transaction.on_commit(lambda: invalidations.changed("nodes", node_id))
    return moved


def _claim_columns(reported: Claim | MalformedClaim | None) -> dict[str, object]:
    held = well_formed(reported)
    if held is None:
        return {"held_epoch": None, "held_instance": ""}
    return {"held_epoch": held.epoch, "held_instance": held.instance_id}


def _time(text: str) -> datetime | None:
    try:
        value = datetime.fromisoformat(text)
        return value.astimezone(UTC) if value.tzinfo else None
    except (ValueError, OverflowError):
        return None
