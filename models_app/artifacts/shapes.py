"""The shape of a model, from a node that has its weights, from facts read earlier, or from the hub."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol
from urllib.parse import quote, urlencode

from pydantic import ValidationError

from agent.wire.capability import Capabilities, Feature, ModelFolder
from agent.wire.shape import FolderShape
from mirbad.kernel import clock
from mirbad.kernel.errors import MirbadError
from models_app import fit
from models_app.artifacts import hub, hub_shape
from models_app.models import KnownShape
from nodes.link import client

# Marks in the keys of stored facts ("-2") change when facts are read by other rules; the old ones expire.
_FOLDER_TRUST = timedelta(minutes=10)
"""The lifetime of facts of a folder that no download filled: a person may change a file in it."""

_HUB_TRUST = timedelta(minutes=10)
"""The time for which a branch is assumed to be at the same commit."""

_FORGOTTEN_AFTER = timedelta(days=180)
"""Facts that nobody refreshed for so long are deleted; they are read again on demand."""

_ASK_SECONDS = 6.0
_HUB_SECONDS = 6.0


class ShapeSource(Protocol):
    """The source of weights, as a definition or an input has it."""

    @property
    def kind(self) -> str:
        """``folder`` or ``huggingface``."""
        ...

    @property
    def folder(self) -> str:
        """The folder below a node's models root."""
        ...

    @property
    def file(self) -> str:
        """A GGUF in the folder, or empty."""
        ...

    @property
    def projector(self) -> str:
        """The projector for the GGUF, "none", or empty for the one that belongs to it."""
        ...

    @property
    def repository(self) -> str:
        """The repository on the hub, or empty."""
        ...

    @property
    def revision(self) -> str:
        """The revision of the repository, or empty."""
        ...


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A node that may have the weights: its last report, and whether it can be called now."""

    node_id: str
    capabilities: Capabilities | None
    serving: bool


@dataclass(frozen=True, slots=True)
class _Copy:
    """A folder with the weights on one node, and the key of its stored facts."""

    report: NodeReport
    folder: ModelFolder
    key: str
    trust: timedelta | None


def find(
    source: ShapeSource | None, reports: Iterable[NodeReport], *, first: str = "", ask: bool = True
) -> fit.ModelShape:
    """Return the shape of the weights of `source`; the copy on node `first` takes precedence.

    Without `ask` no node and no hub is called: stored facts are used. Never raises: the shape carries the reason for
    which it is unknown.
    """
    if source is None:
        return _unknown("The model has no weights.")
    copies = _copies(source, reports, first)
    if known := _known(copies):
        return fit.of_folder(known, source.file, source.projector)
    reasons: list[str] = []
    if ask:
        if (facts := _from_nodes(copies, source, reasons)) is not None:
            return fit.of_folder(facts, source.file, source.projector)
        if source.repository and (facts := _from_hub(source, reasons)) is not None:
            return fit.of_folder(facts, source.file, source.projector)
    stale = _known(copies, however_old=True) or _hub_before(source)
    if stale is not None:
        return fit.of_folder(stale, source.file, source.projector)
    if not reasons:
        reasons.append(f"No reporting node has the folder {source.folder}, and the model names no repository.")
    return _unknown(" ".join(dict.fromkeys(reasons)))


def holders(source: ShapeSource | None, reports: Iterable[NodeReport]) -> frozenset[str]:
    """Return the ids of the nodes that have all of the weights, by their last reports."""
    return frozenset() if source is None else frozenset(copy.report.node_id for copy in _copies(source, reports, ""))


def _unknown(reason: str) -> fit.ModelShape:
    return fit.ModelShape(problems=tuple((part, reason) for part in ("weights", "cache", "context")))


def _copies(source: ShapeSource, reports: Iterable[NodeReport], first: str) -> list[_Copy]:
    name, _, below = source.folder.partition("/")
    found = [
        _copy(report, folder, below, source.file)
        for report in reports
        for folder in (report.capabilities.folders if report.capabilities is not None else ())
        if folder.name == name and folder.files and not folder.missing and _holds(folder, below, source.file)
    ]
    found.sort(key=lambda copy: (copy.report.node_id != first, not copy.report.serving, copy.report.node_id))
    return found


def _holds(folder: ModelFolder, below: str, file: str) -> bool:
    if not file or folder.truncated:
        return True
    path = f"{below}/{file}" if below else file
    return any(item.path == path for item in folder.files)


def _copy(report: NodeReport, folder: ModelFolder, below: str, file: str) -> _Copy:
    fetched = bool(folder.repository and folder.commit)
    origin = f"{folder.repository}@{folder.commit}" if fetched else report.node_id
    listing = sorted((item.path, item.size_bytes) for item in folder.files)
    parts = ["folder-2", origin, folder.name, below, file, listing, folder.truncated]
    return _Copy(report, folder, _digest(parts), None if fetched else _FOLDER_TRUST)


def _digest(parts: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _known(copies: Sequence[_Copy], *, however_old: bool = False) -> FolderShape | None:
    """Return the stored facts of the first copy that has any; one query."""
    if not copies:
        return None
    rows = KnownShape.objects.in_bulk([copy.key for copy in copies])
    now = clock.now()
    for copy in copies:
        row = rows.get(copy.key)
        if row is not None and (however_old or copy.trust is None or now - row.read_at < copy.trust):
            return _facts(row)
    return None


def _facts(row: KnownShape) -> FolderShape | None:
    try:
        return FolderShape.model_validate(row.facts)
    except ValidationError:
        # Another version wrote it; the facts are read again.
        return None


def _keep(key: str, subject: str, facts: FolderShape) -> None:
    values = {"subject": subject[:400], "facts": facts.to_wire(), "read_at": clock.now()}
    KnownShape.objects.update_or_create(key=key, defaults=values)
    KnownShape.objects.filter(read_at__lt=clock.now() - _FORGOTTEN_AFTER).delete()


def _from_nodes(copies: Sequence[_Copy], source: ShapeSource, reasons: list[str]) -> FolderShape | None:
    """Return the facts from the first node that can be called."""
    for copy in copies:
        report = copy.report
        known = report.capabilities
        if not report.serving or known is None or Feature.FOLDER_SHAPES not in known.features:
            continue
        name, _, below = source.folder.partition("/")
        query = urlencode({"below": below, "file": source.file})
        path = f"folders/{quote(name, safe='')}/shape?{query}"
        try:
            facts = client.call(report.node_id, "GET", path, answer=FolderShape, timeout_seconds=_ASK_SECONDS)
        except MirbadError as error:
            reasons.append(error.detail)
            continue
        _keep(copy.key, f"{source.folder} on {report.node_id}", facts)
        return facts
    if copies and not reasons:
        reasons.append(f"No node with the folder {source.folder} is reachable now.")
    return None


def _hub_key(source: ShapeSource, commit: str) -> str:
    return _digest(["hub-2", source.repository, commit, source.file])


def _branch_key(source: ShapeSource) -> str:
    return _digest(["branch-2", source.repository, source.revision, source.file])


def _from_hub(source: ShapeSource, reasons: list[str]) -> FolderShape | None:
    branch = _branch_key(source)
    row = KnownShape.objects.filter(pk=branch).first()
    if row is not None and clock.now() - row.read_at < _HUB_TRUST and (facts := _facts(row)) is not None:
        return facts
    try:
        found = hub.resolve(source.repository, source.revision, timeout=_HUB_SECONDS)
        key = _hub_key(source, found.commit)
        known = KnownShape.objects.filter(pk=key).first()
        facts = _facts(known) if known is not None else None
        if facts is None:
            facts = hub_shape.read(found, source.file)
            _keep(key, f"{found.name} at {found.commit[:12]}", facts)
    except MirbadError as error:
        reasons.append(error.detail)
        return None
    _keep(branch, f"{found.name} {source.revision or 'main'}", facts)
    return facts


def _hub_before(source: ShapeSource) -> FolderShape | None:
    if not source.repository:
        return None
    row = KnownShape.objects.filter(pk=_branch_key(source)).first()
    return None if row is None else _facts(row)
