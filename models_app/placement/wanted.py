"""What is to be placed, from a stored definition or from one that was only typed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from models_app.artifacts.shapes import Source
from models_app.fit import ServePlan, serve_plan
from models_app.models import ModelDefinition

Definition = Any
"""A definition that was sent and not stored: a `ModelInput`. The registry stands above this module."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A model as far as placing it goes. `source` is where its weights are, None for an engine without."""

    model_id: str
    runtime: str
    delivery: str
    source: Source | None
    plan: ServePlan
    image: str = ""
    image_digest: str = ""


def of_model(model: ModelDefinition) -> Wanted:
    """A stored model; its sources from a prefetch when there was one."""
    return _wanted(model, sorted(model.sources.all(), key=lambda source: source.position))


def of_input(data: Definition) -> Wanted:
    """A definition as it was sent."""
    return _wanted(data, data.sources)


def _wanted(data: Any, sources: Sequence[Any]) -> Wanted:
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
    return Wanted(data.id, data.runtime, data.delivery, source, plan, data.image, data.image_digest)
