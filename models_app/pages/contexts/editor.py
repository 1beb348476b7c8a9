"""View-models of the model form: the nodes to choose from, and the folders, GPUs and engines of one node."""

from dataclasses import dataclass

from agent.common.formats import gguf_names
from mirbad.web import parts
from mirbad.web.gpu_choices import gpu_choices
from models_app.artifacts.selection import gguf_models
from nodes import queries as node_queries
from nodes.models import Node


@dataclass(frozen=True, slots=True)
class FolderChoice:
    """A folder that a node reported, as a choice. `files` are its GGUF models, `projectors` those for pictures."""

    name: str
    words: str
    files: tuple[str, ...]
    projectors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeChoice:
    """The folders, GPUs and engines that one node offers. `known` is False before its first report."""

    id: str
    known: bool
    folders: tuple[FolderChoice, ...]
    gpus: tuple[tuple[str, str], ...]
    engines: tuple[tuple[str, bool, str], ...]
    models_root: str

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the folders."""
        return tuple(folder.name for folder in self.folders)


def node_choice(node_id: str) -> NodeChoice | None:
    """Return the offer of one node, None when the node does not exist."""
    node = Node.objects.filter(pk=node_id).first()
    if node is None:
        return None
    found = node_queries.capabilities(node)
    if found is None:
        return NodeChoice(node_id, False, (), (), (), "")
    return NodeChoice(
        id=node_id,
        known=True,
        folders=tuple(
            FolderChoice(
                folder.name,
                f"{folder.name} ({parts.plural(len(folder.files), 'file')}, {parts.size(folder.total_bytes)})",
                gguf_models(file.path for file in folder.files),
                tuple(file.path for file in folder.files if gguf_names.is_projector(file.path)),
            )
            for folder in found.folders
        ),
        gpus=gpu_choices(found),
        engines=tuple(
            (f"{item.runtime} · {item.delivery}", item.available, item.problem or item.version or "")
            for item in found.runtimes
        ),
        models_root=found.models_root,
    )


def placeable_nodes() -> list[tuple[str, str]]:
    """Return the approved nodes as choices."""
    return [(node.pk, node.name) for node in Node.objects.approved().only("id", "display_name")]
