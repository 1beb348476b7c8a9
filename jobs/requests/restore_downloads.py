"""The downloads of a configuration import: one at a time on a node, on all nodes at once.

The row of the operation is the lock: two signals open one download. What a node or the hub refuses for good becomes a
line of the timeline, and the model stays stopped.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction

from agent.wire.capability import Feature
from jobs import ledger
from jobs.errors import StepFailed
from jobs.kinds import restore
from jobs.models import Operation
from jobs.requests import downloads
from jobs.states import SUCCEEDED
from jobs.steps import artifacts, restoring
from jobs.steps.restoring import RestoreInput, RestorePart, RestoreState
from mirbad.kernel import clock
from mirbad.kernel.actor import Actor
from mirbad.kernel.conf import settings
from mirbad.kernel.errors import Conflict, MirbadError
from models_app.artifacts.folders import lacks as folder_lacks
from models_app.models import ModelDefinition, ModelSource
from nodes import queries as node_queries

_AT_ONCE = 25
"""Nodes whose progress is written together."""


def advance(operation_id: str, data: RestoreInput, state: RestoreState, actor: Actor) -> int:
    """Write what the downloads came to, and request the next one of each node; return how many were requested."""
    opened = 0
    changes: dict[str, _Progress] = {}
    for node_id in restoring.unfetched(data, state):
        change = _fetch(node_id, data, state, actor)
        if change is not None:
            changes[node_id] = change
            opened += bool(change.fetching)
        if len(changes) == _AT_ONCE:
            _write(operation_id, state, changes)
            changes = {}
    if changes:
        _write(operation_id, state, changes)
    return opened


@dataclass(frozen=True, slots=True)
class _Progress:
    """The new progress of one node. `left` are models that stay stopped, `text` and `notes` lines of the timeline."""

    fetched: int
    text: str = ""
    fetching: str = ""
    away: datetime | None = None
    left: tuple[str, ...] = ()


def _fetch(node_id: str, data: RestoreInput, state: RestoreState, actor: Actor) -> _Progress | None:
    """Return the next progress of a node's downloads; None while there is none. It may request a download."""
    parts, at = data.nodes[node_id], state.fetched.get(node_id, 0)
    if current := state.fetching.get(node_id):
        return _followed(node_id, parts[at], at, current)
    try:
        return _begin(node_id, parts, at, actor)
    except (StepFailed, MirbadError) as error:
        return _waiting(node_id, parts, at, state.away.get(node_id), error)


def _followed(node_id: str, part: RestorePart, at: int, current: str) -> _Progress | None:
    download = Operation.objects.filter(pk=current).first()
    if download is not None and download.finished_at is None:
        return None
    if download is None or download.outcome == SUCCEEDED:
        return _Progress(at + 1, f"The weights of {part.model} are on node {node_id}.")
    detail = str(download.error.get("detail") or "it was cancelled.")
    return _failed(node_id, part, at, f"the download did not succeed: {detail}")


def _failed(node_id: str, part: RestorePart, at: int, why: str) -> _Progress:
    text = f"Model {part.model} on node {node_id} stays stopped: {why}"
    return _Progress(at + 1, text, left=(part.model,))


def _begin(node_id: str, parts: Sequence[RestorePart], at: int, actor: Actor) -> _Progress:
    """Request the first download that the node needs. Raises StepFailed, MirbadError."""
    models = ModelDefinition.objects.prefetch_related("sources").in_bulk([part.model for part in parts[at:]])
    sources = {pk: _repository(model) for pk, model in models.items()}
    offers = any(sources.values()) and artifacts.offers(node_id, Feature.DOWNLOADS)
    if not offers:
        return _Progress(len(parts))
    node_queries.require_models_root(node_queries.require_serving(node_id))
    folders = artifacts.readable_folders(node_id)
    for number in range(at, len(parts)):
        source = sources.get(parts[number].model)
        if source is None or not folder_lacks(folders, source.folder, source.file, source.projector):
            continue
        wanted = artifacts.request_for(models[parts[number].model], source)
        try:
            made = downloads.request(node_id, wanted, None, actor)
        except Conflict:
            raise
        except MirbadError as error:
            if error.retryable or error.code in restoring.PASSING:
                raise
            return _failed(node_id, parts[number], number, f"its weights cannot be downloaded: {error.detail}")
        text = f"Downloading {source.repository} to node {node_id} for {parts[number].model}."
        return _Progress(number, text, made.pk)
    return _Progress(len(parts), f"Node {node_id} has the weights of its models.")


def _repository(model: ModelDefinition) -> ModelSource | None:
    """Return the source that a start reads, if a repository fills it."""
    first = min(model.sources.all(), key=lambda source: source.position, default=None)
    return first if first is not None and first.kind == ModelSource.HUGGING_FACE else None


def _waiting(
    node_id: str, parts: Sequence[RestorePart], at: int, away: datetime | None, error: MirbadError
) -> _Progress | None:
    """Return that the node is waited for; after the time of a start its models are left stopped."""
    now = clock.now()
    final = error.final if isinstance(error, StepFailed) else _is_final(error)
    if not final and (away is None or now - away <= settings().launch_timeout):
        if away is not None:
            return None
        return _Progress(at, f"Waiting for node {node_id}: {error.detail}", away=now)
    models = tuple(dict.fromkeys(part.model for part in parts[at:]))
    text = f"{len(models)} models on node {node_id} stay stopped: {error.detail}"
    return _Progress(len(parts), text, left=models)


def _is_final(error: MirbadError) -> bool:
    return not (error.retryable or error.code in restoring.PASSING or isinstance(error, Conflict))


def _write(operation_id: str, before: RestoreState, changes: Mapping[str, _Progress]) -> None:
    """Write the progress of several nodes, but of those that another signal brought on."""
    with transaction.atomic():
        row = restoring.locked(operation_id)
        if row is None:
            return
        state = restore.KIND.step(row).state
        mine = {node_id: change for node_id, change in changes.items() if _is_same(state, before, node_id)}
        if not mine:
            return
        away = {node_id: at for node_id, at in state.away.items() if node_id not in mine}
        fetching = {node_id: value for node_id, value in state.fetching.items() if node_id not in mine}
        left = [model_id for change in mine.values() for model_id in change.left]
        new = state.changed(
            fetched={**state.fetched, **{node_id: change.fetched for node_id, change in mine.items()}},
            fetching=fetching | {node_id: change.fetching for node_id, change in mine.items() if change.fetching},
            away=away | {node_id: change.away for node_id, change in mine.items() if change.away is not None},
            left=tuple(dict.fromkeys((*state.left, *left))),
        )
        *texts, last = [change.text for change in mine.values() if change.text] or ["No weights are missing."]
        ledger.note(row, texts)
        ledger.steer(row, new, last)


def _is_same(state: RestoreState, before: RestoreState, node_id: str) -> bool:
    same = state.fetched.get(node_id, 0) == before.fetched.get(node_id, 0)
    return same and state.fetching.get(node_id) == before.fetching.get(node_id)
