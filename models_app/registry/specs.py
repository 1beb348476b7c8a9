"""The launch spec of a placement, and the hash of all settings that a running engine depends on."""

import hashlib
import json
from typing import Any

from pydantic import SecretStr

from agent.wire.capability import Delivery, Runtime
from agent.wire.instances import LaunchSpec, SourceSpec
from mirbad.kernel.seal import seal, unseal
from models_app.artifacts.defaults import default_image
from models_app.errors import ImageMissing
from models_app.models import ModelDefinition, Placement
from models_app.placement import fit_preview
from models_app.states import READY, STARTING, UNHEALTHY
from nodes.models import Node


def _purpose(model_id: str) -> str:
    return f"model-env:{model_id}"


def seal_env(model_id: str, values: dict[str, str]) -> bytes | None:
    """Seal secret environment values as one blob; None for none."""
    return seal(json.dumps(values, sort_keys=True).encode(), _purpose(model_id)) if values else None


def unseal_env(model: ModelDefinition) -> dict[str, str]:
    """Return the secret environment in clear, for a launch only. Raises SealBroken."""
    if not model.secret_env_sealed:
        return {}
    values: dict[str, str] = json.loads(unseal(bytes(model.secret_env_sealed), _purpose(model.pk)))
    return values


def image_of(model: ModelDefinition, node: Node) -> tuple[str, str]:
    """Return the (image, digest) of `model` in a container on `node`: its own, else the node's or master's default.

    Both are empty when none is set; the digest is empty for an image that is named by tag only.
    """
    if model.delivery != Delivery.CONTAINER:
        return "", ""
    if model.image:
        return model.image, model.image_digest
    return default_image(node, model.runtime)


def _source(model: ModelDefinition) -> SourceSpec | None:
    # Read from the prefetch, so that lists of models need no query for each row.
    sources = sorted(model.sources.all(), key=lambda source: source.position)
    if not sources:
        return None
    first = sources[0]
    return SourceSpec(folder=first.folder, file=first.file or None, projector=first.projector or None)


def _unset(source: SourceSpec) -> set[str]:
    return {"projector"} if source.projector is None else set()


def config_hash(model: ModelDefinition, placement: Placement, node: Node) -> str:
    """Return the SHA-256 (lower hex) of everything that changes the running engine; secrets only as sealed."""
    source = _source(model)
    image, digest = image_of(model, node)
    sealed = bytes(model.secret_env_sealed) if model.secret_env_sealed else b""
    parts: dict[str, Any] = {
        "runtime": model.runtime,
        "delivery": model.delivery,
        "names": model.names,
        # Absent without a choice, so that engines started by an earlier version keep their hash.
        "source": source.model_dump(mode="json", by_alias=True, exclude=_unset(source)) if source else None,
        "image": image,
        "digest": digest,
        "args": model.args,
        "env": model.env,
        "secrets": hashlib.sha256(sealed).hexdigest() if sealed else "",
        "gpus": placement.gpu_uuids,
        "context": model.context_length,
        "gpuBudget": model.gpu_memory_budget_bytes,
        "hostBudget": model.host_memory_budget_bytes,
    }
    if model.allow_pickle:
        # Absent otherwise, so that engines started by an earlier version keep their hash.
        parts["allowPickle"] = True
    return hashlib.sha256(json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def restart_needed(model: ModelDefinition, placement: Placement | None, node: Node | None) -> bool:
    """Return whether the running engine was started with another configuration than the present one."""
    if placement is None or node is None or placement.observed not in (READY, STARTING, UNHEALTHY):
        return False
    running = placement.observed_config_hash
    return bool(running) and running != config_hash(model, placement, node)


def launch_spec(placement: Placement, node: Node, *, force: bool = False, ask: bool = False) -> LaunchSpec:
    """Return the wire message that runs `placement` on `node`. Raises ImageMissing, SealBroken.

    With `ask` the node or the hub is called for facts that the estimate of its memory lacks; for callers that may wait.
    """
    model = placement.model
    image, digest = image_of(model, node)
    if model.delivery == Delivery.CONTAINER and not image:
        raise ImageMissing(
            f"Model {model.pk!r} runs as a container but has no image. Set one on the model, a default image in the "
            f"settings of node {node.pk!r}, or set MIRBAD_ENGINE_IMAGE."
        )
    reserved = node.gpus.filter(uuid__in=placement.gpu_uuids, reserve_bytes__isnull=False)
    return LaunchSpec(
        model_id=model.pk,
        generation=placement.generation,
        config_hash=config_hash(model, placement, node),
        runtime=Runtime(model.runtime),
        delivery=Delivery(model.delivery),
        served_names=model.names,
        source=_source(model),
        image=image or None,
        image_digest=digest or None,
        args=tuple(model.args),
        env=dict(model.env),
        secret_env={name: SecretStr(value) for name, value in unseal_env(model).items()},
        gpu_uuids=tuple(placement.gpu_uuids),
        gpu_memory_budget_bytes=model.gpu_memory_budget_bytes,
        host_memory_budget_bytes=model.host_memory_budget_bytes,
        estimate=fit_preview.memory_of(placement, node, ask=ask),
        context_length=model.context_length,
        start_timeout_seconds=model.start_timeout_seconds,
        host_reserve_bytes=node.memory_reserve_bytes,
        gpu_reserve_bytes={gpu.uuid: gpu.reserve_bytes for gpu in reserved},
        max_concurrent_starts=node.max_concurrent_starts,
        allow_pickle=model.allow_pickle,
        force=force,
    )
