"""From a launch to an order for a delivery: seat, command, environment."""

import json
import os
from typing import Any

import psutil

from agent.config import AgentConfig
from agent.deliveries.base import ImageOrder, Order
from agent.running import meeting, room
from agent.running.record import Record
from agent.running.yard import Yard
from agent.runtimes import RUNTIMES
from agent.runtimes.base import Meeting, Seat, Source
from agent.runtimes.flags import rejected
from agent.telemetry import host
from agent.wire.capability import Delivery, MemoryModel, Runtime
from agent.wire.instances import LaunchSpec


def threads(config: AgentConfig) -> int:
    """Threads of an engine that computes on the processor. One on a small machine: engines spin while they wait for
    each other's threads, which collapses when others want the cores too.
    """
    if config.engine_threads is not None:
        return config.engine_threads
    cores = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    return 1 if cores <= 2 else cores - 1


def _gpus(spec: LaunchSpec, yard: Yard) -> tuple[str, ...] | None:
    """GPUs by UUID; empty is all that there are (they share the machine's memory); None is no GPU."""
    if spec.gpu_uuids:
        return spec.gpu_uuids
    if spec.runtime is Runtime.SIM:
        return None
    has_gpus = yard.cards is not None and bool(yard.cards.cards)
    return () if has_gpus and yard.memory_model is MemoryModel.UNIFIED else None


def _process_gpu_env(gpus: tuple[str, ...] | None) -> dict[str, str]:
    if gpus is None:
        return {"CUDA_VISIBLE_DEVICES": ""}
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}


def _labels(record: Record, yard: Yard) -> dict[str, str]:
    return {
        "mirbad.record": json.dumps(_portable(record), separators=(",", ":")),
        "mirbad.fleet": yard.fleet,
        "mirbad.node": yard.node,
        "mirbad.instance": record.instance_id,
        "mirbad.model": record.spec.model_id,
        "mirbad.generation": str(record.spec.generation),
        "mirbad.operation": record.operation_id,
        "mirbad.launch": record.launch_id,
    }


def _portable(record: Record) -> dict[str, Any]:
    """What a container carries of its record, so that it can be taken up when the state folder was lost; no secrets."""
    spec = record.spec.model_copy(update={"secret_env": {}})
    return {
        "instance_id": record.instance_id,
        "operation_id": record.operation_id,
        "port": record.port,
        "rendezvous_port": record.rendezvous_port,
        "spec": spec.model_dump(mode="json"),
    }


def _meeting(record: Record, yard: Yard) -> Meeting | None:
    rendezvous = record.spec.rendezvous
    if rendezvous is None:
        return None
    port = record.rendezvous_port or rendezvous.port
    if port is None:
        raise rejected("a shard other than rank 0 was not told the port to meet at.")
    return meeting.of(rendezvous, port, yard.config.sysfs_root)


def make(record: Record, source: Source | None, yard: Yard) -> Order:
    """The order for the launch in `record`, whose port is chosen."""
    spec, runtime = record.spec, RUNTIMES[record.spec.runtime]
    in_container = spec.delivery is Delivery.CONTAINER
    shares_network = spec.rendezvous is not None
    behind_port = in_container and not shares_network
    seat = Seat(
        host="0.0.0.0" if behind_port else record.host,  # noqa: S104  inside a container; published on loopback only
        port=runtime.container_port if behind_port else record.port,
        api_key=record.api_key,
        threads=threads(yard.config),
        source=source,
        meeting=_meeting(record, yard),
        part_of_card=room.part_of_card(spec, yard, host.total_memory_bytes()),
    )
    command = runtime.command(spec, yard.config, seat)
    secrets = {name: value.get_secret_value() for name, value in spec.secret_env.items()}
    gpus = _gpus(spec, yard)
    env = {**spec.env, **secrets, **command.env}
    image = None
    if in_container:
        image = ImageOrder(
            reference=spec.image or "",
            digest=spec.image_digest,
            entrypoint=command.entrypoint,
            mounts=source.mounts if source else (),
            container_port=runtime.container_port,
            host_port=record.port,
            gpus=gpus,
            shares_network=shares_network,
            labels=_labels(record, yard),
        )
    else:
        env |= _process_gpu_env(gpus)
    return Order(
        instance_id=record.instance_id,
        launch_id=record.launch_id,
        argv=command.argv,
        env=env,
        log=yard.records.log_path(record.instance_id),
        image=image,
    )
