"""Model folders of a node: listed by the node itself, and deleted there."""

from dataclasses import dataclass
from urllib.parse import quote

from agent.common.formats import gguf_names
from agent.wire.capability import Feature, ModelFolder
from agent.wire.downloads import FolderList, FolderRemoved, GgufList
from agent.wire.errors import AgentCode
from audit import log as audit_log
from mirbad.kernel.actor import Actor
from mirbad.kernel.errors import NotFound
from mirbad.kernel.ids import new_operation_id
from models_app.artifacts import node_parameter
from models_app.artifacts.errors import FolderInUse
from models_app.models import ModelSource, Placement
from models_app.states import FAILED, RUNNING, STOPPED
from nodes import fencing
from nodes.errors import AgentRefused
from nodes.link import client
from nodes.models import Node

_REMOVE_SECONDS = 120.0
_LIST_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class NodeFolders:
    """The folders of one node, and the models that use each."""

    node: Node
    listed: FolderList
    used_by: dict[str, tuple[str, ...]]


def listed(node_id: str) -> NodeFolders:
    """List the folders of the request's node now. Raises the errors of `node_parameter.reachable`."""
    node = node_parameter.reachable(node_id, Feature.DOWNLOADS)
    found = client.call(node.pk, "GET", "folders", answer=FolderList, timeout_seconds=_LIST_SECONDS)
    return NodeFolders(node, found, users_of(node.pk))


def users_of(node_id: str) -> dict[str, tuple[str, ...]]:
    """Return the ids of the models placed on the node by the folder that they use. One query."""
    rows = (
        ModelSource.objects.filter(model__placements__node_id_text=node_id)
        .order_by("model_id")
        .values_list("folder", "model_id")
    )
    found: dict[str, list[str]] = {}
    for folder, model_id in rows:
        found.setdefault(folder.split("/", 1)[0], []).append(model_id)
    return {folder: tuple(dict.fromkeys(models)) for folder, models in found.items()}


def gguf(node_id: str, folder: str) -> GgufList:
    """Return the GGUF models in a folder of a node. Raises NotFound, and the errors of `node_parameter.reachable`."""
    node = node_parameter.reachable(node_id, Feature.DOWNLOADS)
    path = f"folders/{quote(folder, safe='')}/gguf"
    try:
        return client.call(node.pk, "GET", path, answer=GgufList, timeout_seconds=_LIST_SECONDS)
    except AgentRefused as refusal:
        raise _as_error(refusal, node.pk, folder) from refusal


def remove(node_id: str, folder: str, actor: Actor) -> FolderRemoved:
    """Delete a folder that no model runs from. The freed bytes are those that the node no longer lists afterwards.

    Raises FolderInUse, NotFound, MasterFenced, AgentRefused, and the errors of `node_parameter.reachable`.
    """
    with audit_log.refusals_recorded("folder.delete", actor, node_id=node_id, target=folder):
        fencing.require_unfenced()
        node = node_parameter.reachable(node_id, Feature.DOWNLOADS)
        _require_unused(node, folder)
        path = f"folders/{quote(folder, safe='')}"
        try:
            gone = client.call(
                node.pk,
                "DELETE",
                path,
                answer=FolderRemoved,
                operation_id=new_operation_id(),
                timeout_seconds=_REMOVE_SECONDS,
            )
        except AgentRefused as refusal:
            raise _as_error(refusal, node.pk, folder) from refusal
    text = f"{gone.freed_bytes} bytes freed"
    audit_log.record("folder.delete", actor, node_id=node.pk, target=folder, detail=text)
    return gone


def _require_unused(node: Node, folder: str) -> None:
    names = users_of(node.pk).get(folder, ())
    for placement in Placement.objects.filter(node_id_text=node.pk, model_id__in=names).order_by("model_id"):
        if placement.desired == RUNNING or placement.observed not in (STOPPED, FAILED):
            text = f"Model {placement.model_id!r} uses the folder {folder}; stop it first."
            raise FolderInUse(text, fields={"modelId": placement.model_id})


def _as_error(refusal: AgentRefused, node_id: str, folder: str) -> Exception:
    if refusal.agent_code == AgentCode.NOT_FOUND:
        return NotFound(f"Node {node_id!r} has no model folder {folder!r}.")
    if refusal.agent_code == AgentCode.START_CONFLICT:
        return FolderInUse(refusal.detail, fields=refusal.fields)
    return refusal


def lacks(folders: tuple[ModelFolder, ...], folder: str, file: str, projector: str = "") -> bool:
    """Return whether a model's folder is missing, incomplete, or without `file` or `projector` (empty: any)."""
    name, _, below = folder.partition("/")
    found = next((item for item in folders if item.name == name), None)
    if found is not None and found.problem:
        # What cannot be looked at is not gone; the start says why.
        return False
    if found is None or found.missing:
        return True
    if found.truncated:
        return False
    there = {item.path for item in found.files}
    needed = [one for one in (file, projector) if one and one != gguf_names.NO_PROJECTOR]
    return any((f"{below}/{one}" if below else one) not in there for one in needed)
