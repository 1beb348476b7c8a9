"""What people ask for: a set of files on a node. The hub is asked first, so that what cannot be is refused at once."""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db import IntegrityError, transaction
from pydantic import SecretStr

from agent.wire.capability import Feature
from agent.wire.downloads import DownloadForgotten, DownloadList, DownloadSpec, DownloadView, TokenInput, TokenKept
from audit import log as audit_log
from jobs import ledger
from jobs.kinds import download
from jobs.models import Operation
from jobs.queries import open_operation
from mirbad.kernel.actor import Actor
from mirbad.kernel.errors import Conflict, MirbadError, NotFound
from mirbad.kernel.ids import new_operation_id
from models_app.artifacts import acting, hub
from models_app.artifacts.wishes import Wish, spec_of
from nodes import fencing
from nodes.errors import AgentRefused
from nodes.link import client
from nodes.models import Node

_TARGET = "folder"
_SHOWN = 100


@dataclass(frozen=True, slots=True)
class Shown:
    """A download as it stands: the operation, and what its node says of it now (None: it does not, or is not asked)."""

    operation: Operation
    view: DownloadView | None = None


def target_of(node_id: str, folder: str) -> str:
    """The target of operations on one folder of one node: at most one is open."""
    return hashlib.sha256(f"{node_id}\n{folder}".encode()).hexdigest()[:40]


def request(node_id: str, wish: Wish, token: str | None, actor: Actor) -> Operation:
    """Have a set brought to the node that acts; asked twice, it is the same operation.

    The token goes to that node's agent alone, before the operation is there, and into its memory alone. Raises what
    `spec_of` and `acting.reachable` raise, Conflict (another set comes into that folder), MasterFenced, AgentRefused.
    """
    with audit_log.refusals_recorded("download", actor, node_id=node_id, target=wish.repository):
        fencing.require_unfenced()
        node = acting.reachable(node_id, Feature.DOWNLOADS)
        spec = spec_of(wish, token)
        standing = _standing(node, spec)
        operation_id = standing.pk if standing else new_operation_id()
        if token:
            _hand_over(node, operation_id, token)
        return standing or _create(node, operation_id, spec, actor)


def _standing(node: Node, spec: DownloadSpec) -> Operation | None:
    found = open_operation(download.KIND.lane, _TARGET, target_of(node.pk, spec.folder))
    if found is None:
        return None
    if DownloadSpec.model_validate(found.input["spec"]) != spec or found.cancel_requested_at is not None:
        text = f"Another set comes into the folder {spec.folder} of node {node.pk!r}; wait for it, or cancel it."
        raise Conflict(text, fields={"operationId": found.pk})
    return found


def _hand_over(node: Node, operation_id: str, token: str) -> None:
    body = TokenInput(token=SecretStr(token), nonce=secrets.token_hex(16))
    # A key of its own: the same token may have to be given again, after the agent was restarted.
    key = f"{operation_id}:token:{secrets.token_hex(6)}"
    client.call(node.pk, "PUT", f"downloads/{operation_id}/token", body, answer=TokenKept, operation_id=key)


def _create(node: Node, operation_id: str, spec: DownloadSpec, actor: Actor) -> Operation:
    subject = ledger.Subject(_TARGET, target_of(node.pk, spec.folder), node.pk)
    text = f"Download of {spec.repository} at {spec.commit[:12]} requested."
    frozen: dict[str, Any] = {"spec": spec.to_wire()}
    try:
        with transaction.atomic():
            made = ledger.create(
                download.KIND, download.CHECKING, subject, actor, text, frozen, operation_id=operation_id
            )
            audit_log.record(
                "download",
                actor,
                node_id=node.pk,
                operation_id=made.pk,
                target=spec.repository,
                result="accepted",
                detail=f"{len(spec.files)} files, {spec.total_bytes} bytes, into {spec.folder}",
            )
            return made
    except IntegrityError as error:
        raise Conflict(f"Another download into the folder {spec.folder} began just now; look again.") from error


def inspect(node_id: str, wish: Wish, token: str | None) -> tuple[Node, hub.Repository]:
    """What the repository holds, before anything is chosen. Raises what `hub.resolve` and `acting.named` raise."""
    return acting.named(node_id), hub.resolve(wish.repository, wish.revision, token)


def of_node(node_id: str) -> tuple[Node, list[Shown]]:
    """The downloads of the node that acts, the newest first, with what it says of them now.

    Raises what `acting.reachable` raises.
    """
    node = acting.reachable(node_id)
    views = {view.download_id: view for view in client.call(node.pk, "GET", "downloads", answer=DownloadList).downloads}
    rows = recorded([node.pk])
    return node, [Shown(row, views.get(row.pk)) for row in rows]


def recorded(node_ids: Sequence[str] | None = None) -> list[Operation]:
    """Downloads as the ledger holds them, the newest first; of some nodes, or of all. One statement."""
    rows = Operation.objects.filter(kind=download.NAME).order_by("-id")
    if node_ids is not None:
        rows = rows.filter(node_id_text__in=node_ids)
    return list(rows[:_SHOWN])


def one(operation_id: str) -> Operation:
    """A download. Raises NotFound."""
    row = Operation.objects.filter(pk=operation_id, kind=download.NAME).first()
    if row is None:
        raise NotFound(f"There is no download {operation_id!r}.")
    return row


def forget(operation_id: str, actor: Actor) -> None:
    """Remove what an ended download left unfinished on its node. Raises NotFound, Conflict (not over), NodeOffline."""
    with audit_log.refusals_recorded("download", actor, operation_id=operation_id):
        row = one(operation_id)
        if row.finished_at is None:
            raise Conflict("The download is not over; cancel it first.", fields={"operationId": row.pk})
        fencing.require_unfenced()
        node = acting.reachable(row.node_id_text, Feature.DOWNLOADS)
        path, key = f"downloads/{row.pk}", f"{row.pk}:forget:{secrets.token_hex(6)}"
        try:
            client.call(node.pk, "DELETE", path, answer=DownloadForgotten, operation_id=key)
        except AgentRefused as refusal:
            raise _as_conflict(refusal) from refusal
        audit_log.record("download", actor, node_id=node.pk, operation_id=row.pk, detail="unfinished bytes removed")


def _as_conflict(refusal: AgentRefused) -> MirbadError:
    return Conflict(refusal.detail, fields={"agentCode": refusal.agent_code})
