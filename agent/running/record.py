"""Records of instances on disk, written before the agent acts."""

import asyncio
import hashlib
import logging
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from agent import clock
from agent.common.reason import Reason
from agent.deliveries.base import Handle
from agent.deliveries.unrecorded import ENGINES, kept_path
from agent.running import folder_copy, kept_logs
from agent.state import ensure_private_dir, read_json, write_json
from agent.wire.instances import (
    LIVE_STATES,
    BrokenRequest,
    EarlierRun,
    InstanceState,
    InstanceView,
    LaunchSpec,
    PullProgress,
)

_log = logging.getLogger("mirbad.agent.instances")


class InstanceRecord(BaseModel):
    """One instance. `spawning` is on disk before an engine is started, `handle` as soon as it is known.

    `spec.secret_env` is kept until the engine has it and then dropped. `log_base` counts the bytes that were cut from
    the log. `unrecorded` engines were found without anything that says how to reach them: they can be stopped, no more.
    `rendezvous_port` is the port on which rank 0 of a replica meets the others, 0 for every other engine.
    Times on the monotonic clock are valid for the boot in `boot_id`. The names are those in the files: an upgraded
    agent adopts by them.
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
    context_length: int | None = None
    exited_at: str | None = None
    exit_code: int | None = None
    exit_signal: str | None = None
    broken_requests: tuple[BrokenRequest, ...] = ()
    earlier_runs: tuple[EarlierRun, ...] = ()
    unrecorded: bool = False
    stop_requested: bool = False
    stop_grace_seconds: float = 10.0
    last_lines: tuple[str, ...] = ()

    @property
    def is_live(self) -> bool:
        """True while an engine may exist."""
        return self.state in LIVE_STATES

    @property
    def awaits_ready(self) -> bool:
        """True until the engine was ready once."""
        return self.ready_at is None and not self.unrecorded

    @property
    def address(self) -> tuple[str, int]:
        """Host and port at which the engine answers: the container's own, where it has one."""
        if self.handle is not None and self.handle.host and self.handle.port:
            return self.handle.host, self.handle.port
        return self.host, self.port

    @property
    def runs(self) -> tuple[EarlierRun, ...]:
        """The runs whose logs are kept once another one begins: this one, if it began, and those before it."""
        if self.started_at is None:
            return self.earlier_runs
        last = EarlierRun(
            run=1,
            started_at=self.started_at,
            exited_at=self.exited_at,
            exit_code=self.exit_code,
            exit_signal=self.exit_signal,
            reason=self.reason,
        )
        earlier = (run.model_copy(update={"run": run.run + 1}) for run in self.earlier_runs)
        return (last, *earlier)[: kept_logs.EARLIER_RUNS]

    def view(
        self, progress: PullProgress | None, memory_bytes: int | None, notice: Reason | None = None
    ) -> InstanceView:
        """Return the instance as the master reads it."""
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
            notice=notice,
            notice_code=notice.code if notice is not None else None,
            progress=progress,
            started_at=self.started_at,
            ready_at=self.ready_at,
            start_seconds=self.start_seconds,
            context_length=self.context_length,
            exited_at=self.exited_at,
            exit_code=self.exit_code,
            exit_signal=self.exit_signal,
            broken_requests=self.broken_requests,
            earlier_runs=self.earlier_runs,
            stop_requested=self.stop_requested,
            last_lines=self.last_lines,
            pid=handle.pid if handle else None,
            container_id=handle.container_id if handle else None,
            image_digest=handle.image_digest if handle else self.spec.image_digest,
            memory_bytes=memory_bytes,
            rendezvous_port=self.rendezvous_port or None,
            gpu_uuids=self.spec.gpu_uuids,
        )


class RecordStore:
    """The folder of records. One thread writes, so that an older record never replaces a newer one."""

    def __init__(self, state_dir: Path) -> None:
        self.folder = state_dir / "instances"
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="records")
        self.is_copy = False
        """True for a folder that was copied from another agent; known after `load`."""

    def log_path(self, instance_id: str) -> Path:
        """Return the path of an instance's log."""
        return self.folder / f"{instance_id}.log"

    def scratch_path(self, instance_id: str) -> Path:
        """Return the folder that a process engine of this instance may write. Short: sockets in it have long names."""
        return self.folder.parent / ENGINES / hashlib.sha256(instance_id.encode()).hexdigest()[:12]

    def _path(self, instance_id: str) -> Path:
        return self.folder / f"{instance_id}.json"

    async def save(self, record: InstanceRecord) -> None:
        """Write the record; it is on disk when this returns. Cancelling the caller does not stop the write."""
        data = record.model_dump(mode="json")
        await self._run(write_json, self._path(record.instance_id), data)

    async def remove(self, instance_id: str) -> None:
        """Delete the record and the logs."""
        await self._run(self._remove, instance_id)

    async def _run(self, call: Any, *arguments: Any) -> Any:
        # Shielded: cancelling the future would drop a queued write that the next line may rely on.
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._thread, call, *arguments))

    def _remove(self, instance_id: str) -> None:
        self._path(instance_id).unlink(missing_ok=True)
        kept_logs.remove_all(self.log_path(instance_id))
        shutil.rmtree(self.scratch_path(instance_id), ignore_errors=True)
        kept_path(self.scratch_path(instance_id)).unlink(missing_ok=True)

    async def load(self) -> list[InstanceRecord]:
        """Read every record on disk. An unreadable one is renamed and logged."""
        records: list[InstanceRecord] = await self._run(self._load)
        return records

    def _load(self) -> list[InstanceRecord]:
        ensure_private_dir(self.folder)
        self.is_copy = folder_copy.is_copy(self.folder)
        records = []
        for path in sorted(self.folder.glob("*.json")):
            try:
                records.append(InstanceRecord.model_validate(read_json(path)))
            except (ValueError, ValidationError):
                aside = path.with_suffix(f".unreadable-{clock.now():%Y%m%d%H%M%S}")
                path.rename(aside)
                _log.exception("the record of an instance cannot be read; renamed to %s", aside)
        return records

    def close(self) -> None:
        """Wait for writes in progress."""
        self._thread.shutdown(wait=True)


def stored_views(state_dir: Path) -> tuple[InstanceView, ...]:
    """Return the engines as last written to disk."""
    if not (state_dir / "instances").is_dir():
        return ()
    records = RecordStore(state_dir)
    try:
        return tuple(record.view(None, None) for record in asyncio.run(records.load()))
    finally:
        records.close()
