"""Desired state of nodes: approved, rejected, drained, configured. Every write: guard, change, audit, announce on
commit.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from django.db import transaction
from pydantic import AfterValidator, AliasChoices, BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from pydantic.alias_generators import to_camel

from agent.common import image_rules
from audit import log as audit_log
from mirbad.kernel import clock
from mirbad.kernel.actor import Actor
from mirbad.kernel.errors import Conflict, InvalidRequest
from mirbad.kernel.guarded import transition
from mirbad.live import invalidations
from nodes import addresses, fencing
from nodes.errors import NodeRevoked, PinChanged, no_such_node
from nodes.models import Gpu, JoinToken, Node, NodePin, RevokedKey
from nodes.states import APPROVED, LIFECYCLE, PENDING, REVOKED

_SPKI_DIGITS = 64
_AT_ONCE = 200
_Bytes = Annotated[int, Field(ge=0, lt=2**63)]
_Label = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=r"^[^\x00-\x1f\x7f]+$")]
_LabelValue = Annotated[str, StringConstraints(max_length=255, pattern=r"^[^\x00-\x1f\x7f]*$")]
_Printable = r"^[^\x00-\x1f\x7f]*$"


def _an_image(text: str) -> str:
    if text:
        image_rules.parse(text)
    return text


_Image = Annotated[
    str, StringConstraints(strip_whitespace=True, max_length=255, pattern=r"^\S*$"), AfterValidator(_an_image)
]
_Digest = Annotated[str, StringConstraints(pattern=r"^(sha256:[0-9a-f]{64})?$")]


def _vllm(column: str) -> AliasChoices:
    """Return the names of a column of the default vLLM image: on ``/api`` the name includes the runtime."""
    outer = column.replace("default_", "default_vllm_")
    return AliasChoices(to_camel(outer), outer, column, to_camel(column))


class NodePatch(BaseModel):
    """Settings of a node. Only given fields change; None clears a limit."""

    model_config = ConfigDict(
        extra="forbid", alias_generator=to_camel, validate_by_name=True, validate_by_alias=True, frozen=True
    )

    display_name: Annotated[str, StringConstraints(strip_whitespace=True, max_length=100, pattern=_Printable)] = ""
    address: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=255)] = ""
    port: Annotated[int, Field(ge=1, le=65535)] = 9443
    labels: Annotated[dict[_Label, _LabelValue], Field(max_length=64)] = {}
    memory_reserve_bytes: _Bytes | None = None
    max_concurrent_starts: Annotated[int, Field(ge=1, le=1000)] | None = None
    default_image: Annotated[_Image, Field(validation_alias=_vllm("default_image"))] = ""
    default_image_digest: Annotated[_Digest, Field(validation_alias=_vllm("default_image_digest"))] = ""
    default_llama_image: _Image = ""
    default_llama_image_digest: _Digest = ""
    gpu_reserves: dict[str, _Bytes | None] = {}


def approve(node_id: str, expected_spki: str, actor: Actor) -> Node:
    """Approve a node by the key that the operator compared; its unused tokens expire. The watcher then connects.

    Raises NotFound, NodeRevoked, Conflict (approved already, nothing to approve), PinChanged, InvalidRequest,
    MasterFenced.
    """
    seen = "".join(expected_spki.split()).replace(":", "").lower()
    if len(seen) != _SPKI_DIGITS:
        raise InvalidRequest("Send the key fingerprint that you compared (64 hex digits) as expectedSpkiSha256.")
    now = clock.now()
    with transaction.atomic():
        fencing.require_unfenced()
        # Tokens before the node: a join acquires its locks in the same order.
        JoinToken.objects.filter(node_id_text=node_id, used_at=None, expires_at__gt=now).update(expires_at=now)
        node = _locked(node_id)
        if node.lifecycle == APPROVED:
            raise Conflict(f"Node {node_id} is already approved.")
        pin = NodePin.objects.filter(node=node, slot=NodePin.PENDING).first()
        if pin is None:
            raise Conflict(f"Node {node_id} has not enrolled, so it has no key to approve.")
        if pin.spki_sha256 != seen:
            raise PinChanged(
                f"That is not the key of node {node_id}: it may have enrolled again with another key since you looked. "
                "Compare the fingerprint that is shown now with the one on the machine.",
                fields={"spkiSha256": pin.spki_sha256},
            )
        NodePin.objects.filter(pk=pin.pk).update(slot=NodePin.CURRENT)
        name = _requested_name(node_id, pin.spki_sha256)
        transition(
            Node.objects.filter(pk=node_id),
            LIFECYCLE,
            "lifecycle",
            APPROVED,
            approved_at=now,
            **({"display_name": name} if name else {}),
        )
        audit_log.record("node.approve", actor, node_id=node_id, target=node.address, detail=f"key {pin.spki_sha256}")
        _announce(node_id)
    return Node.objects.get(pk=node_id)


def reject(node_id: str, actor: Actor) -> None:
    """Delete an enrollment request with its key and its tokens; the id can be used again.

    Raises NotFound, NodeRevoked, Conflict (approved already), MasterFenced.
    """
    with transaction.atomic():
        fencing.require_unfenced()
        JoinToken.objects.filter(node_id_text=node_id).delete()
        node = _locked(node_id)
        if node.lifecycle != PENDING:
            raise Conflict(f"Node {node_id} is already approved. Revoke it instead.")
        spki = NodePin.objects.filter(node=node).values_list("spki_sha256", flat=True).first() or "none"
        node.delete()
        audit_log.record("node.reject", actor, node_id=node_id, target=node.address, detail=f"key {spki}")
        _announce(node_id)


def drain(node_id: str, actor: Actor) -> Node:
    """Keep new models off the node; running ones keep running. Raises NotFound, NodeRevoked, Conflict, MasterFenced."""
    return _set_draining(node_id, actor, draining=True)


def undrain(node_id: str, actor: Actor) -> Node:
    """Accept new models on the node again. Raises as `drain`."""
    return _set_draining(node_id, actor, draining=False)


def update(node_id: str, patch: Mapping[str, Any], actor: Actor) -> Node:
    """Change the settings that `patch` names (fields of `NodePatch`, snake or camel case) and no others.

    Raises InvalidRequest (with problems), NotFound, NodeRevoked, MasterFenced.
    """
    wanted = read_settings(patch)
    changes = {name: getattr(wanted, name) for name in sorted(wanted.model_fields_set - {"gpu_reserves"})}
    known = Node.objects.filter(pk=node_id).first()
    if known is not None and {"address", "port"} & changes.keys():
        # A name is resolved here, before the transaction: it may take seconds.
        address = addresses.check(
            changes.get("address", known.address),
            changes.get("port", known.port),
            loopback_allowed=known.is_bootstrap,
        )
        if "address" in changes:
            changes["address"] = address
    with transaction.atomic():
        fencing.require_unfenced()
        node = _locked(node_id)
        changed = [name for name, value in changes.items() if getattr(node, name) != value]
        if changed:
            Node.objects.filter(pk=node_id).update(**{name: changes[name] for name in changed})
        changed += _set_reserves(node, wanted.gpu_reserves)
        if changed:
            audit_log.record("node.update", actor, node_id=node_id, detail=", ".join(changed))
            _announce(node_id)
    return Node.objects.get(pk=node_id)


def update_many(patches: Mapping[str, Mapping[str, Any]], actor: Actor) -> None:
    """Change settings of many nodes as `update` does, by a number of queries that does not grow with them.

    In the caller's transaction. A patch names columns and `gpu_reserves`, and no address. Raises InvalidRequest,
    MasterFenced.
    """
    wanted = {node_id: read_settings(patch) for node_id, patch in patches.items()}
    fencing.require_unfenced()
    nodes = {node.pk: node for node in Node.objects.not_revoked().select_for_update().filter(pk__in=wanted)}
    columns: set[str] = set()
    gpus: list[Gpu] = []
    named: dict[str, list[str]] = {node_id: [] for node_id in nodes}
    for node_id, node in nodes.items():
        for name in sorted(wanted[node_id].model_fields_set - {"gpu_reserves", "address", "port"}):
            if getattr(node, name) != (value := getattr(wanted[node_id], name)):
                setattr(node, name, value)
                columns.add(name)
                named[node_id].append(name)
    for gpu in Gpu.objects.filter(node_id__in=nodes):
        reserves = wanted[gpu.node_id].gpu_reserves
        if gpu.uuid in reserves and gpu.reserve_bytes != reserves[gpu.uuid]:
            gpu.reserve_bytes = reserves[gpu.uuid]
            gpus.append(gpu)
            named[gpu.node_id].append(f"reserve of {gpu.uuid}")
    changed = {node_id: names for node_id, names in named.items() if names}
    if columns:
        Node.objects.bulk_update([nodes[node_id] for node_id in changed], sorted(columns), batch_size=_AT_ONCE)
    Gpu.objects.bulk_update(gpus, ["reserve_bytes"], batch_size=_AT_ONCE)
    lines = [{"node_id": node_id, "detail": ", ".join(names)} for node_id, names in changed.items()]
    audit_log.record_many("node.update", actor, lines)
    transaction.on_commit(lambda: invalidations.changed_many("nodes", changed))


def follow_port(node_id: str, port: int, actor: Actor) -> bool:
    """Record that the agent of the master's own machine listens on `port` now; return whether that is new.

    A fenced master does it too: it commands no node, and otherwise would not observe that the node obeys another
    master.
    """
    with transaction.atomic():
        own = Node.objects.filter(pk=node_id, is_bootstrap=True).exclude(lifecycle=REVOKED)
        if not own.exclude(port=port).update(port=port):
            return False
        audit_log.record("node.update", actor, node_id=node_id, detail="port")
        _announce(node_id)
    return True


def block_new_models(node_id: str) -> bool:
    """Keep new models off a node that is being revoked, in the caller's transaction; True when none were accepted
    before.
    """
    changed = Node.objects.filter(pk=node_id, lifecycle=APPROVED, draining=False).update(draining=True)
    if changed:
        _announce(node_id)
    return not changed


def allow_new_models(node_id: str) -> None:
    """Accept new models as before, since the revoke did not complete. In the caller's transaction."""
    if Node.objects.filter(pk=node_id, lifecycle=APPROVED, draining=True).update(draining=False):
        _announce(node_id)


def revoke(node_id: str, actor: Actor, *, operation_id: str = "") -> Node:
    """Revoke the node for good: its keys are recorded as revoked, its id stays in use, its tokens expire.

    A fenced master does it too: its own keys and rows change, and no node is called. Engines there are the caller's
    concern, before this. Raises NotFound, NodeRevoked.
    """
    now = clock.now()
    with transaction.atomic():
        JoinToken.objects.filter(node_id_text=node_id).update(expires_at=now, answer=None)
        node = _locked(node_id)
        spkis = list(NodePin.objects.filter(node=node).values_list("spki_sha256", flat=True))
        RevokedKey.objects.bulk_create(
            [RevokedKey(spki_sha256=spki, node_id_text=node_id) for spki in spkis], ignore_conflicts=True
        )
        NodePin.objects.filter(node=node).delete()
        transition(Node.objects.filter(pk=node_id), LIFECYCLE, "lifecycle", REVOKED, revoked_at=now, draining=False)
        keys = f"keys {', '.join(spkis) or 'none'}"
        audit_log.record("node.revoke", actor, node_id=node_id, operation_id=operation_id, detail=keys)
        _announce(node_id)
    return Node.objects.get(pk=node_id)


def _set_draining(node_id: str, actor: Actor, *, draining: bool) -> Node:
    with transaction.atomic():
        fencing.require_unfenced()
        node = _locked(node_id)
        if node.lifecycle != APPROVED:
            raise Conflict(f"Node {node_id} waits for approval. Approve it first.")
        if Node.objects.filter(pk=node_id, draining=not draining).update(draining=draining):
            audit_log.record("node.drain" if draining else "node.undrain", actor, node_id=node_id)
            _announce(node_id)
    return Node.objects.get(pk=node_id)


def _locked(node_id: str) -> Node:
    node = Node.objects.select_for_update().filter(pk=node_id).first()
    if node is None:
        raise no_such_node(node_id)
    if node.lifecycle == REVOKED:
        raise NodeRevoked(f"Node {node_id} is revoked.")
    return node


def _requested_name(node_id: str, spki: str) -> str:
    """Return the display name given with the token that this key used."""
    names = JoinToken.objects.filter(node_id_text=node_id, used_by_spki=spki).order_by("-used_at")
    return names.values_list("display_name", flat=True).first() or ""


def _set_reserves(node: Node, reserves: Mapping[str, int | None]) -> list[str]:
    if not reserves:
        return []
    gpus = {gpu.uuid: gpu for gpu in Gpu.objects.filter(node=node)}
    unknown = sorted(set(reserves) - gpus.keys())
    if unknown:
        raise InvalidRequest(
            f"Node {node.pk} has no GPU {', '.join(unknown)}.",
            problems=[
                {"code": "gpu_unknown", "message": f"GPU {uuid[:80]} is not on the node.", "field": "gpuReserves"}
                for uuid in unknown
            ],
        )
    changed = [uuid for uuid, reserve in reserves.items() if gpus[uuid].reserve_bytes != reserve]
    for uuid in changed:
        Gpu.objects.filter(pk=gpus[uuid].pk).update(reserve_bytes=reserves[uuid])
    return [f"reserve of {uuid}" for uuid in changed]


def read_settings(patch: Mapping[str, Any]) -> NodePatch:
    """Return `patch` with every value checked. Raises InvalidRequest (problems)."""
    try:
        return NodePatch.model_validate(dict(patch))
    except ValidationError as error:
        problems = [
            {"code": "invalid", "message": f"{item['msg']}.", "field": ".".join(map(str, item["loc"]))}
            for item in error.errors(include_url=False, include_input=False, include_context=False)
        ]
        text = " ".join(f"{problem['field']}: {problem['message']}" for problem in problems)
        raise InvalidRequest(text, problems=problems) from None


def _announce(node_id: str) -> None:
    transaction.on_commit(lambda: invalidations.changed("nodes", node_id))
