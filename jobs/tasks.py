"""Handlers of signals and ticks: a task carries the id of an operation and nothing else."""

from jobs import worker
from jobs.backup import uploads
from jobs.base import STEP
from jobs.kinds import evacuate, restore
from jobs.loops import backups, ca_upkeep
from jobs.loops.configured_takeover import look_once
from jobs.loops.holds import release_stale_once
from jobs.loops.orphans import stop_orphans_once
from jobs.loops.prune import prune_once
from jobs.loops.records import forget_records_once
from jobs.loops.renew import renew_once
from jobs.loops.replicas import rebuild_once
from jobs.loops.restarts import restart_once
from jobs.loops.resume import resume_once
from jobs.loops.sweep import sweep_once
from jobs.requests import evacuation
from jobs.requests import restore as imports
from mirbad.tasking.tasks import tick


@STEP.handler
def step(operation_id: str) -> None:
    """Run the due steps of one operation."""
    worker.run(operation_id)


@evacuate.OPEN_NEXT.handler
def open_next_move(operation_id: str) -> None:
    """Open the next move of an evacuation."""
    evacuation.open_next(operation_id)


@tick("jobs.evacuations")
def open_moves() -> None:
    """Open the next move of every evacuation."""
    evacuation.open_all()


@restore.OPEN_NEXT.handler
def carry_on_import(operation_id: str) -> None:
    """Open the next downloads and starts of a configuration import."""
    imports.open_next(operation_id)


@tick("jobs.restores")
def carry_on_imports() -> None:
    """Open the next downloads and starts of every configuration import."""
    imports.open_all()


@tick("jobs.sweep")
def sweep() -> None:
    """Enqueue every operation that is due and not leased."""
    sweep_once()


@tick("jobs.takeover")
def take_over() -> None:
    """Request the takeovers of a flag file or an option."""
    look_once()


@tick("jobs.renew")
def renew() -> None:
    """Renew the certificates of nodes that are due."""
    renew_once()


@tick("jobs.ca-rotation")
def look_after_the_ca() -> None:
    """Follow the flag files of a CA rotation, and clean up after ended ones."""
    ca_upkeep.tick()


@tick("jobs.resume")
def resume() -> None:
    """Start models that should run and do not."""
    resume_once()


@tick("jobs.restarts")
def restart_engines() -> None:
    """Restart engines that ended by themselves."""
    restart_once()


@tick("jobs.strays")
def stop_orphans() -> None:
    """Stop orphans."""
    stop_orphans_once()


@tick("jobs.records")
def forget_records() -> None:
    """Have nodes forget ended engines without a placement."""
    forget_records_once()


@tick("jobs.holds")
def release_holds() -> None:
    """Release the holds of ended operations."""
    release_stale_once()


@tick("jobs.prune")
def prune() -> None:
    """Delete operations that ended long ago."""
    prune_once()


@tick("jobs.uploads")
def remove_uploads() -> None:
    """Remove uploaded backups that nobody confirmed."""
    uploads.remove_old()


@tick("jobs.replicas")
def rebuild_replicas() -> None:
    """Rebuild replicas that lost a shard."""
    rebuild_once()


@tick("jobs.backups")
def make_scheduled_backups() -> None:
    """Start the backups that are due by their schedule."""
    backups.tick()
