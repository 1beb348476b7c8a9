"""From the record of a launch to the run spec for a delivery: allocation, command, environment."""

import json

from agent.config import AgentConfig
from agent.deliveries.base import DriverVersions, ImageSpec, RunSpec
from agent.running import capacity
from agent.running.context import EngineContext
from agent.running.record import InstanceRecord
from agent.running.rendezvous import localize
from agent.runtimes import RUNTIMES
from agent.runtimes.base import Allocation, LocalRendezvous, WeightsSource
from agent.runtimes.flags import check_settings, rejected
from agent.telemetry import cores, gpu, host
from agent.wire.capability import Delivery, MemoryModel, Runtime
from agent.wire.instances import LaunchSpec


def threads(config: AgentConfig) -> int:
    """Return the threads of an engine that computes on the CPU, by the cores that this agent may use.

    One on a small machine: engines spin while they wait for each other's threads, and performance collapses when other
    processes need the cores too.
    """
    if config.engine_threads is not None:
        return config.engine_threads
    count = cores.usable_cores()
    return 1 if count <= 2 else count - 1


def gpus_of(spec: LaunchSpec, context: EngineContext) -> tuple[str, ...] | None:
    """Return the GPUs by UUID. Empty means all (they share the machine's memory); None means no GPU."""
    if spec.gpu_uuids:
        return spec.gpu_uuids
    if spec.runtime is Runtime.SIM:
        return None
    has_gpus = context.cards is not None and bool(context.cards.cards)
    return () if has_gpus and context.memory_model is MemoryModel.UNIFIED else None


def _process_gpu_env(gpus: tuple[str, ...] | None) -> dict[str, str]:
    if gpus is None:
        return {"CUDA_VISIBLE_DEVICES": ""}
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}


def _labels(record: InstanceRecord, context: EngineContext) -> dict[str, str]:
    return {
        "mirbad.record": _portable(record),
        "mirbad.fleet": context.fleet,
        "mirbad.node": context.node,
        "mirbad.instance": record.instance_id,
        "mirbad.model": record.spec.model_id,
        "mirbad.generation": str(record.spec.generation),
        "mirbad.operation": record.operation_id,
        "mirbad.launch": record.launch_id,
    }


def _portable(record: InstanceRecord) -> str:
    """Return the part of the record that is kept beside the engine, without secrets, for a node that lost its state."""
    spec = record.spec.model_copy(update={"secret_env": {}})
    part = {
        "instance_id": record.instance_id,
        "operation_id": record.operation_id,
        "port": record.port,
        "rendezvous_port": record.rendezvous_port,
        "spec": spec.model_dump(mode="json"),
    }
    return json.dumps(part, separators=(",", ":"))


def _local_rendezvous(record: InstanceRecord, context: EngineContext) -> LocalRendezvous | None:
    rendezvous = record.spec.rendezvous
    if rendezvous is None:
        return None
    port = record.rendezvous_port or rendezvous.port
    if port is None:
        raise rejected("a shard other than rank 0 needs the port of the rendezvous.")
    return localize(rendezvous, port, context.config.sysfs_root)


def _secrets(spec: LaunchSpec) -> dict[str, str]:
    return {name: value.get_secret_value() for name, value in spec.secret_env.items()}


def build(record: InstanceRecord, source: WeightsSource | None, context: EngineContext) -> RunSpec:
    """Return the run spec for the launch in `record`, whose port is chosen."""
    spec, runtime = record.spec, RUNTIMES[record.spec.runtime]
    # Again: the record may be of an agent that had another list, or was changed on disk.
    check_settings(spec, context.config)
    in_container, shares_network = spec.delivery is Delivery.CONTAINER, spec.rendezvous is not None
    behind_port = in_container and not shares_network
    allocation = Allocation(
        host="0.0.0.0" if behind_port else record.host,  # noqa: S104  inside a container; published on loopback only
        port=runtime.container_port if behind_port else record.port,
        api_key=record.api_key,
        threads=threads(context.config),
        source=source,
        rendezvous=_local_rendezvous(record, context),
        card_fraction=capacity.card_fraction(spec, context, host.total_memory_bytes()),
    )
    command = runtime.command(spec, context.config, allocation)
    gpus = gpus_of(spec, context)
    env = {**spec.env, **_secrets(spec), **command.env}
    image = None
    if in_container:
        image = ImageSpec(
            reference=spec.image or "",
            digest=spec.image_digest,
            entrypoint=command.entrypoint,
            mounts=source.mounts if source else (),
            container_port=runtime.container_port,
            host_port=record.port,
            gpus=gpus,
            shares_network=shares_network,
            internet=context.config.engine_internet,
            writable_root=context.config.engine_writable_root,
            compiles=spec.runtime is Runtime.VLLM,
            versions=None if gpus is None else DriverVersions(*gpu.driver_versions()),
            labels=_labels(record, context),
        )
    else:
        env |= _process_gpu_env(gpus)
    return RunSpec(
        instance_id=record.instance_id,
        launch_id=record.launch_id,
        argv=command.argv,
        env=env,
        log=context.records.log_path(record.instance_id),
        scratch=context.records.scratch_path(record.instance_id),
        reads=source.mounts if source else (),
        connects=context.config.engine_internet or spec.runtime is Runtime.VLLM or spec.rendezvous is not None,
        portable=_portable(record),
        image=image,
    )
