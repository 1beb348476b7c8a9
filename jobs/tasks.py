"""Doorbells that workers answer: a task carries the id of an operation and nothing else."""

from jobs import evacuation, worker
from jobs.base import STEP
from jobs.kinds import evacuate
from jobs.loops import ca_rotation
from jobs.loops.holds import release_stale_once
from jobs.loops.prune import prune_once
from jobs.loops.records import forget_records_once
from jobs.loops.renew import renew_once
from jobs.loops.replicas import rebuild_once
from jobs.loops.resume import resume_once
from jobs.loops.strays import stop_strays_once
from jobs.loops.sweep import sweep_once
from jobs.loops.takeover import look_once
from mirbad.tasking.tasks import tick


@STEP.answer
def step(operation_id: str) -> None:
    """Run the due steps of one operation."""
    worker.run(operation_id)


@evacuate.OPEN_NEXT.answer
def open_next_move(operation_id: str) -> None:
    """Open the next move of an evacuation."""
    evacuation.open_next(operation_id)


@tick("jobs.evacuations")
def open_moves() -> None:
    """Open the next move of every evacuation."""
    evacuation.open_all()


@tick("jobs.sweep")
def sweep() -> None:
    """Ring for every operation that is due and that nobody works on."""
    sweep_once()


@tick("jobs.takeover")
def take_over() -> None:
    """Ask for the takeovers that a flag file or an option wants."""
    look_once()


@tick("jobs.renew")
def renew() -> None:
    """Renew the certificates of nodes that are due."""
    renew_once()


@tick("jobs.ca-rotation")
def look_after_the_ca() -> None:
    """Obey the flag files of a CA rotation, and see to what a rotation left over."""
    ca_rotation.tick()


@tick("jobs.resume")
def resume() -> None:
    """Start what should run and does not."""
    resume_once()


@tick("jobs.strays")
def stop_strays() -> None:
    """Stop engines that are left over on nodes on which their models have no place."""
    stop_strays_once()


@tick("jobs.records")
def forget_records() -> None:
    """Have nodes forget engines that ended and whose place is gone."""
    forget_records_once()


@tick("jobs.holds")
def release_holds() -> None:
    """Let go of models whose holder is over."""
    release_stale_once()


@tick("jobs.prune")
def prune() -> None:
    """Forget operations that ended long ago."""
    prune_once()


@tick("jobs.replicas")
def rebuild_replicas() -> None:
    """Rebuild replicas that lost a shard."""
    rebuild_once()
