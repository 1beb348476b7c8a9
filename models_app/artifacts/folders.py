"""Model folders of a node: read from the node itself, and removed there."""

from dataclasses import dataclass
from urllib.parse import quote

from agent.wire.capability import Feature, ModelFolder
from agent.wire.downloads import FolderList, FolderRemoved, GgufList
from agent.wire.errors import AgentCode
from audit import log as audit_log
from mirbad.kernel.actor import Actor
from mirbad.kernel.errors import NotFound
from mirbad.kernel.ids import new_operation_id
from models_app.artifacts import acting
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
class Folders:
    """The folders of one node, and the models that name each."""

    node: Node
    listed: FolderList
    used_by: dict[str, tuple[str, ...]]


def listed(node_id: str) -> Folders:
    """The folders of the node that acts, read now. Raises what `acting.reachable` raises."""
    node = acting.reachable(node_id, Feature.DOWNLOADS)
    found = client.call(node.pk, "GET", "folders", answer=FolderList, timeout_seconds=_LIST_SECONDS)
    return Folders(node, found, users_of(node.pk))


def users_of(node_id: str) -> dict[str, tuple[str, ...]]:
    """Ids of the models that stand on the node, by the folder that they name. One statement."""
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
    """The GGUF models in a folder of the node that acts. Raises NotFound, and what `acting.reachable` raises."""
    node = acting.reachable(node_id, Feature.DOWNLOADS)
    path = f"folders/{quote(folder, safe='')}/gguf"
    try:
        return client.call(node.pk, "GET", path, answer=GgufList, timeout_seconds=_LIST_SECONDS)
    except AgentRefused as refusal:
        raise _told(refusal, node.pk, folder) from refusal


def remove(node_id: str, folder: str, actor: Actor) -> FolderRemoved:
    """Remove a folder that no model runs from. What it freed is what the node no longer lists afterwards.

    Raises FolderInUse, NotFound, MasterFenced, AgentRefused, and what `acting.reachable` raises.
    """
    with audit_log.refusals_recorded("folder.delete", actor, node_id=node_id, target=folder):
        fencing.require_unfenced()
        node = acting.reachable(node_id, Feature.DOWNLOADS)
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
            raise _told(refusal, node.pk, folder) from refusal
    text = f"{gone.freed_bytes} bytes are listed no more"
    audit_log.record("folder.delete", actor, node_id=node.pk, target=folder, detail=text)
    return gone


def _require_unused(node: Node, folder: str) -> None:
    names = users_of(node.pk).get(folder, ())
    for placement in Placement.objects.filter(node_id_text=node.pk, model_id__in=names).order_by("model_id"):
        if placement.desired == RUNNING or placement.observed not in (STOPPED, FAILED):
            text = f"Model {placement.model_id!r} runs from the folder {folder} or is to; stop it first."
            raise FolderInUse(text, fields={"modelId": placement.model_id})


def _told(refusal: AgentRefused, node_id: str, folder: str) -> Exception:
    if refusal.agent_code == AgentCode.NOT_FOUND:
        return NotFound(f"Node {node_id!r} has no model folder {folder!r}.")
    if refusal.agent_code == AgentCode.START_CONFLICT:
        return FolderInUse(refusal.detail, fields=refusal.fields)
    return refusal


def lacks(folders: tuple[ModelFolder, ...], folder: str, file: str) -> bool:
    """Whether a model's folder is not there, lost a file of its download, or does not hold `file` (empty: any)."""
    found = next((item for item in folders if item.name == folder.split("/", 1)[0]), None)
    if found is None or found.missing:
        return True
    if not file or found.truncated:
        return False
    below = f"{folder.split('/', 1)[1]}/{file}" if "/" in folder else file
    return not any(item.path == below for item in found.files)
