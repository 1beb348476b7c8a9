"""What the agent keeps of an instance on disk, written before it acts."""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from agent import clock
from agent.deliveries.base import Handle
from agent.running import home
from agent.state import ensure_private_dir, read_json, write_json
from agent.wire.instances import LIVE_STATES, InstanceState, InstanceView, LaunchSpec, PullProgress

_log = logging.getLogger("mirbad.agent.instances")


class Record(BaseModel):
    """One instance. `spawning` is set on disk before an engine is started, `handle` as soon as it is known.

    `spec.secret_env` is kept until the engine has it and then dropped. `log_base` counts the bytes that were cut from
    the log. `rendezvous_port` is where rank 0 of a replica meets the others, 0 for every other engine. Times on the
    monotonic clock hold for the boot in `boot_id`.
    """

    model_config = ConfigDict(extra="ignore")

    instance_id: str
    operation_id: str
    spec: LaunchSpec
    api_key: str
    state: InstanceState = InstanceState.PREPARING
    launch_id: str = ""
    spawning: bool = False
    attempts: int = 0
    handle: Handle | None = None
    host: str = "127.0.0.1"
    port: int = 0
    rendezvous_port: int = 0
    boot_id: str = ""
    init_ticks: int | None = None
    spawned_monotonic: float | None = None
    log_base: int = 0
    reason: str | None = None
    reason_code: str | None = None
    started_at: str | None = None
    ready_at: str | None = None
    start_seconds: float | None = None
    exited_at: str | None = None
    exit_code: int | None = None
    stop_requested: bool = False
    stop_grace_seconds: float = 10.0
    last_lines: tuple[str, ...] = ()

    @property
    def is_live(self) -> bool:
        """Whether an engine may exist."""
        return self.state in LIVE_STATES

    def view(self, progress: PullProgress | None, memory_bytes: int | None) -> InstanceView:
        """The record as the master sees it."""
        handle = self.handle
        return InstanceView(
            instance_id=self.instance_id,
            model_id=self.spec.model_id,
            generation=self.spec.generation,
            config_hash=self.spec.config_hash,
            operation_id=self.operation_id,
            runtime=self.spec.runtime,
            delivery=self.spec.delivery,
            state=self.state,
            reason=self.reason,
            reason_code=self.reason_code,
            progress=progress,
            started_at=self.started_at,
            ready_at=self.ready_at,
            start_seconds=self.start_seconds,
            exited_at=self.exited_at,
            exit_code=self.exit_code,
            stop_requested=self.stop_requested,
            last_lines=self.last_lines,
            pid=handle.pid if handle else None,
            container_id=handle.container_id if handle else None,
            image_digest=handle.image_digest if handle else self.spec.image_digest,
            memory_bytes=memory_bytes,
            rendezvous_port=self.rendezvous_port or None,
            gpu_uuids=self.spec.gpu_uuids,
        )


class Records:
    """The folder of records. One thread writes, so that an older record never lands on a newer one."""

    def __init__(self, state_dir: Path) -> None:
        self.folder = state_dir / "instances"
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="records")
        self.is_copy = False
        """Whether the folder is a copy of another agent's, known once it was loaded."""

    def log_path(self, instance_id: str) -> Path:
        """Where the engine of an instance writes."""
        return self.folder / f"{instance_id}.log"

    def _path(self, instance_id: str) -> Path:
        return self.folder / f"{instance_id}.json"

    async def save(self, record: Record) -> None:
        """On disk when it returns. A caller that is cancelled does not stop the write."""
        data = record.model_dump(mode="json")
        await self._run(write_json, self._path(record.instance_id), data)

    async def remove(self, instance_id: str) -> None:
        """Delete the record and the log."""
        await self._run(self._remove, instance_id)

    async def _run(self, call: Any, *arguments: Any) -> Any:
        # shielded: a cancelled future would take a write out of the queue that the next line may rely on
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._thread, call, *arguments))

    def _remove(self, instance_id: str) -> None:
        self._path(instance_id).unlink(missing_ok=True)
        self.log_path(instance_id).unlink(missing_ok=True)

    async def load(self) -> list[Record]:
        """Every record on disk. One that cannot be read is put aside, and said."""
        records: list[Record] = await self._run(self._load)
        return records

    def _load(self) -> list[Record]:
        ensure_private_dir(self.folder)
        self.is_copy = home.look(self.folder)
        records = []
        for path in sorted(self.folder.glob("*.json")):
            try:
                records.append(Record.model_validate(read_json(path)))
            except (ValueError, ValidationError):
                aside = path.with_suffix(f".unreadable-{clock.now():%Y%m%d%H%M%S}")
                path.rename(aside)
                _log.exception("the record of an instance cannot be read; it was put aside as %s", aside)
        return records

    def close(self) -> None:
        """Wait for what is being written."""
        self._thread.shutdown(wait=True)
