"""Requests of downloads to a node. The hub is read first, so that impossible ones are refused at once."""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from django.db import IntegrityError, transaction
from pydantic import SecretStr

from agent.wire.capability import Feature
from agent.wire.downloads import DownloadForgotten, DownloadList, DownloadSpec, DownloadView, TokenInput, TokenStored
from audit import log as audit_log
from jobs import ledger
from jobs.kinds import download
from jobs.models import Operation
from jobs.queries import open_operation
from mirbad.kernel.actor import Actor
from mirbad.kernel.errors import Conflict, MirbadError, NotFound
from mirbad.kernel.ids import new_operation_id
from models_app.artifacts import hub, node_parameter
from models_app.artifacts.download_request import DownloadRequest, spec_of
from nodes import fencing
from nodes import queries as node_queries
from nodes.errors import AgentRefused
from nodes.link import client
from nodes.models import Node

_TARGET = "folder"
_SHOWN = 100


@dataclass(frozen=True, slots=True)
class DownloadStatus:
    """A download: its operation, and the present view of its node, None without one."""

    operation: Operation
    view: DownloadView | None = None


def target_of(node_id: str, folder: str) -> str:
    """Return the target of operations on one folder of one node: at most one is open."""
    return hashlib.sha256(f"{node_id}\n{folder}".encode()).hexdigest()[:40]


def request(node_id: str, chosen: DownloadRequest, token: str | None, actor: Actor) -> Operation:
    """Download a set of files to the acting node; repeated, it returns the same operation.

    The token is sent to that node's agent only, before the operation exists, and kept in its memory only. Raises what
    `spec_of` and `node_parameter.reachable` raise, Conflict (another set is downloaded into that folder), MasterFenced,
    ModelsRootChanged, AgentRefused.
    """
    with audit_log.refusals_recorded("download", actor, node_id=node_id, target=chosen.repository):
        fencing.require_unfenced()
        node = node_parameter.reachable(node_id, Feature.DOWNLOADS)
        node_queries.require_models_root(node)
        spec = spec_of(chosen, token)
        existing = _existing(node, spec)
        operation_id = existing.pk if existing else new_operation_id()
        if token:
            _send_token(node, operation_id, token)
        return existing or _create(node, operation_id, spec, actor)


def _existing(node: Node, spec: DownloadSpec) -> Operation | None:
    found = open_operation(download.KIND.concurrency_group, _TARGET, target_of(node.pk, spec.folder))
    if found is None:
        return None
    if download.KIND.step(found).input.spec != spec or found.cancel_requested_at is not None:
        text = f"Another download into the folder {spec.folder} of node {node.pk!r} is open; wait for it, or cancel it."
        raise Conflict(text, fields={"operationId": found.pk})
    return found


def _send_token(node: Node, operation_id: str, token: str) -> None:
    body = TokenInput(token=SecretStr(token), nonce=secrets.token_hex(16))
    # A new key each time: the same token may have to be sent again, after a restart of the agent.
    key = f"{operation_id}:token:{secrets.token_hex(6)}"
    client.call(node.pk, "PUT", f"downloads/{operation_id}/token", body, answer=TokenStored, operation_id=key)


def _create(node: Node, operation_id: str, spec: DownloadSpec, actor: Actor) -> Operation:
    subject = ledger.Subject(_TARGET, target_of(node.pk, spec.folder), node.pk)
    text = f"Download of {spec.repository} at {spec.commit[:12]} requested."
    data = download.DownloadInput(spec=spec)
    try:
        with transaction.atomic():
            made = ledger.create(
                download.KIND, download.CHECKING, subject, actor, text, data, operation_id=operation_id
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
        raise Conflict(f"Another download into the folder {spec.folder} was just started; reload.") from error


def inspect(node_id: str, chosen: DownloadRequest, token: str | None) -> tuple[Node, hub.Repository]:
    """The node, and the repository's files. Raises the errors of `hub.resolve` and `node_parameter.named`."""
    return node_parameter.named(node_id), hub.resolve(chosen.repository, chosen.revision, token)


def of_node(node_id: str) -> tuple[Node, list[DownloadStatus]]:
    """Return the acting node and its downloads, newest first, with its present views.

    Raises what `node_parameter.reachable` raises.
    """
    node = node_parameter.reachable(node_id)
    views = {view.download_id: view for view in client.call(node.pk, "GET", "downloads", answer=DownloadList).downloads}
    rows = recorded([node.pk])
    return node, [DownloadStatus(row, views.get(row.pk)) for row in rows]


def recorded(node_ids: Sequence[str] | None = None) -> list[Operation]:
    """Return the operations of downloads, newest first; of some nodes, or of all. One statement."""
    rows = Operation.objects.filter(kind=download.NAME).order_by("-id")
    if node_ids is not None:
        rows = rows.filter(node_id_text__in=node_ids)
    return list(rows[:_SHOWN])


def one(operation_id: str) -> Operation:
    """Return a download. Raises NotFound."""
    row = Operation.objects.filter(pk=operation_id, kind=download.NAME).first()
    if row is None:
        raise NotFound(f"Download {operation_id!r} not found.")
    return row


def forget(operation_id: str, actor: Actor) -> None:
    """Remove the unfinished files of an ended download. Raises NotFound, Conflict (not over), NodeOffline."""
    with audit_log.refusals_recorded("download", actor, operation_id=operation_id):
        row = one(operation_id)
        if row.finished_at is None:
            raise Conflict("The download has not ended; cancel it first.", fields={"operationId": row.pk})
        fencing.require_unfenced()
        node = node_parameter.reachable(row.node_id_text, Feature.DOWNLOADS)
        path, key = f"downloads/{row.pk}", f"{row.pk}:forget:{secrets.token_hex(6)}"
        try:
            client.call(node.pk, "DELETE", path, answer=DownloadForgotten, operation_id=key)
        except AgentRefused as refusal:
            raise _as_conflict(refusal) from refusal
        audit_log.record("download", actor, node_id=node.pk, operation_id=row.pk, detail="unfinished bytes removed")


def _as_conflict(refusal: AgentRefused) -> MirbadError:
    return Conflict(refusal.detail, fields={"agentCode": refusal.agent_code})
