"""View-models of the model folders of a node."""

from dataclasses import dataclass

from agent.wire.capability import ModelFolder
from mirbad.kernel.errors import MirbadError
from mirbad.web import parts
from mirbad.web.parts import Bar
from models_app.artifacts import folders
from nodes import queries
from nodes.models import Node


@dataclass(frozen=True, slots=True)
class FolderRow:
    """One model folder in a list."""

    name: str
    size: str
    files: str
    repository: str
    commit: str
    missing: tuple[str, ...]
    problem: str
    used_by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FoldersShown:
    """The folders of a node; `problem` is the reason for which they are from the last report."""

    rows: tuple[FolderRow, ...]
    disk: Bar | None
    problem: str


def of_node(node: Node) -> FoldersShown:
    """Read the folders of `node` now, or show those of its last report with the reason."""
    try:
        found = folders.listed(node.pk)
    except MirbadError as error:
        known = queries.capabilities(node)
        used = folders.users_of(node.pk)
        rows = tuple(_row(item, used) for item in known.folders) if known else ()
        return FoldersShown(rows, None, f"{error.detail} Showing the folders of its last report.")
    rows = tuple(_row(item, found.used_by) for item in found.listed.folders)
    free, total = found.listed.free_bytes, found.listed.total_bytes
    taken = total - free if total is not None and free is not None else None
    return FoldersShown(rows, parts.memory_bar("Models disk", taken, total), found.listed.problem or "")


def _row(folder: ModelFolder, used: dict[str, tuple[str, ...]]) -> FolderRow:
    return FolderRow(
        name=folder.name,
        size=f"over {parts.size(folder.total_bytes)}" if folder.truncated else parts.size(folder.total_bytes),
        files=("over " if folder.truncated else "") + parts.plural(len(folder.files), "file"),
        repository=folder.repository or "",
        commit=folder.commit or "",
        missing=folder.missing,
        problem=folder.problem or "",
        used_by=used.get(folder.name, ()),
    )
