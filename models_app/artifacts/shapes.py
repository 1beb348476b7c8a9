"""Where the shape of a model comes from: a node that has its weights, what was read before, or the hub."""

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

_FOLDER_TRUST = timedelta(minutes=10)
"""How long facts of a folder hold that no download filled: a person may change a file in it."""

_HUB_TRUST = timedelta(minutes=10)
"""How long a branch is taken to stand where it stood."""

_FORGOTTEN_AFTER = timedelta(days=180)
"""Facts that nobody read anew for so long are dropped; whoever needs them asks again."""

_ASK_SECONDS = 6.0
_HUB_SECONDS = 6.0


class Source(Protocol):
    """Where weights are, as a definition or an input has it."""

    @property
    def kind(self) -> str:
        """``folder`` or ``huggingface``."""
        ...

    @property
    def folder(self) -> str:
        """Below a node's models root."""
        ...

    @property
    def file(self) -> str:
        """A GGUF in it, or empty."""
        ...

    @property
    def repository(self) -> str:
        """On the hub, or empty."""
        ...

    @property
    def revision(self) -> str:
        """Of the repository, or empty."""
        ...


@dataclass(frozen=True, slots=True)
class Keeper:
    """A node that may have the weights: what it reported, and whether it can be asked now."""

    node_id: str
    capabilities: Capabilities | None
    serving: bool


@dataclass(frozen=True, slots=True)
class _Copy:
    """A folder with the weights on one node, and what facts of it are kept under."""

    keeper: Keeper
    folder: ModelFolder
    key: str
    trust: timedelta | None


def find(source: Source | None, keepers: Iterable[Keeper], *, first: str = "", ask: bool = True) -> fit.ModelShape:
    """The shape of the weights that `source` names; `first` is the node whose copy counts most.

    Without `ask` nobody is asked: what was read before is taken. Never raises: what keeps the shape unknown is told.
    """
    if source is None:
        return _unknown("The model names no weights.")
    copies = _copies(source, keepers, first)
    if known := _known(copies):
        return fit.of_folder(known, source.file)
    reasons: list[str] = []
    if ask:
        if (facts := _asked(copies, source, reasons)) is not None:
            return fit.of_folder(facts, source.file)
        if source.repository and (facts := _from_hub(source, reasons)) is not None:
            return fit.of_folder(facts, source.file)
    stale = _known(copies, however_old=True) or _hub_before(source)
    if stale is not None:
        return fit.of_folder(stale, source.file)
    if not reasons:
        reasons.append(f"No node that reports now has the folder {source.folder}, and no repository is named.")
    return _unknown(" ".join(dict.fromkeys(reasons)))


def holders(source: Source | None, keepers: Iterable[Keeper]) -> frozenset[str]:
    """Ids of the nodes that have the weights whole, as they last reported."""
    return frozenset() if source is None else frozenset(copy.keeper.node_id for copy in _copies(source, keepers, ""))


def _unknown(reason: str) -> fit.ModelShape:
    return fit.ModelShape(problems=tuple((part, reason) for part in ("weights", "cache", "context")))


def _copies(source: Source, keepers: Iterable[Keeper], first: str) -> list[_Copy]:
    name, _, below = source.folder.partition("/")
    found = [
        _copy(keeper, folder, below, source.file)
        for keeper in keepers
        for folder in (keeper.capabilities.folders if keeper.capabilities is not None else ())
        if folder.name == name and folder.files and not folder.missing and _holds(folder, below, source.file)
    ]
    found.sort(key=lambda copy: (copy.keeper.node_id != first, not copy.keeper.serving, copy.keeper.node_id))
    return found


def _holds(folder: ModelFolder, below: str, file: str) -> bool:
    if not file or folder.truncated:
        return True
    path = f"{below}/{file}" if below else file
    return any(item.path == path for item in folder.files)


def _copy(keeper: Keeper, folder: ModelFolder, below: str, file: str) -> _Copy:
    fetched = bool(folder.repository and folder.commit)
    origin = f"{folder.repository}@{folder.commit}" if fetched else keeper.node_id
    listing = sorted((item.path, item.size_bytes) for item in folder.files)
    parts = ["folder", origin, folder.name, below, file, listing, folder.truncated]
    return _Copy(keeper, folder, _digest(parts), None if fetched else _FOLDER_TRUST)


def _digest(parts: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _known(copies: Sequence[_Copy], *, however_old: bool = False) -> FolderShape | None:
    """What was read of the first copy of which anything was; one statement."""
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
        # Written by another version; it is read again.
        return None


def _keep(key: str, subject: str, facts: FolderShape) -> None:
    values = {"subject": subject[:400], "facts": facts.to_wire(), "read_at": clock.now()}
    KnownShape.objects.update_or_create(key=key, defaults=values)
    KnownShape.objects.filter(read_at__lt=clock.now() - _FORGOTTEN_AFTER).delete()


def _asked(copies: Sequence[_Copy], source: Source, reasons: list[str]) -> FolderShape | None:
    """The facts as the first node tells them that can be asked."""
    for copy in copies:
        keeper = copy.keeper
        known = keeper.capabilities
        if not keeper.serving or known is None or Feature.FOLDER_SHAPES not in known.features:
            continue
        name, _, below = source.folder.partition("/")
        query = urlencode({"below": below, "file": source.file})
        path = f"folders/{quote(name, safe='')}/shape?{query}"
        try:
            facts = client.call(keeper.node_id, "GET", path, answer=FolderShape, timeout_seconds=_ASK_SECONDS)
        except MirbadError as error:
            reasons.append(error.detail)
            continue
        _keep(copy.key, f"{source.folder} on {keeper.node_id}", facts)
        return facts
    if copies and not reasons:
        reasons.append(f"The nodes that have the folder {source.folder} cannot be asked now.")
    return None


def _hub_key(source: Source, commit: str) -> str:
    return _digest(["hub", source.repository, commit, source.file])


def _from_hub(source: Source, reasons: list[str]) -> FolderShape | None:
    branch = _digest(["branch", source.repository, source.revision, source.file])
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


def _hub_before(source: Source) -> FolderShape | None:
    if not source.repository:
        return None
    branch = _digest(["branch", source.repository, source.revision, source.file])
    row = KnownShape.objects.filter(pk=branch).first()
    return None if row is None else _facts(row)
