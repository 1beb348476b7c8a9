"""Doorbells: a task carries the id of an operation and nothing else."""

from mirbad.tasking.tasks import bell, tick


@bell("jobs.step")
def step(operation_id: str) -> None:
    """Run the due step of one operation."""


@tick("jobs.sweep")
def sweep() -> None:
    """Ring for every operation that is due and that nobody works on."""


@tick("jobs.resume")
def resume() -> None:
    """Start what should run and does not."""
