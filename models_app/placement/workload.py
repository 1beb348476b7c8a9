"""The model to place, from a stored definition or from one that is only typed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from models_app.artifacts.shapes import ShapeSource
from models_app.fit import ServePlan, serve_plan
from models_app.models import ModelDefinition

Definition = Any
"""A definition that was sent and not stored: a `ModelInput`. The registry is a layer above this module."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A model as placement sees it. `source` names its weights, None for an engine without weights."""

    model_id: str
    runtime: str
    delivery: str
    source: ShapeSource | None
    plan: ServePlan
    image: str = ""
    image_digest: str = ""


def of_model(model: ModelDefinition) -> Workload:
    """Return the workload of a stored model; sources come from a prefetch when there was one."""
    return _workload(model, sorted(model.sources.all(), key=lambda source: source.position))


def of_input(data: Definition) -> Workload:
    """Return the workload of a definition as it was sent."""
    return _workload(data, data.sources)


def _workload(data: Any, sources: Sequence[Any]) -> Workload:
    source = sources[0] if sources else None
    name = f"{source.repository} {source.folder} {source.file}" if source is not None else ""
    plan = serve_plan(
        data.runtime,
        data.args,
        context_length=data.context_length,
        gpu_budget_bytes=data.gpu_memory_budget_bytes,
        host_budget_bytes=data.host_memory_budget_bytes,
        name=name,
    )
    return Workload(data.id, data.runtime, data.delivery, source, plan, data.image, data.image_digest)
