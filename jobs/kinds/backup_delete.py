"""Delete a backup: deleting → done. Its copy goes first, then the master's own file, then its row."""

from jobs.backup import storage
from jobs.base import Audit, Display, Done, Kind, NoData, OperationData, Outcome, Stage, Step
from jobs.errors import BackupDestinationFailed, StepFailed
from jobs.models import Backup
from jobs.states import SUCCEEDED
from mirbad.kernel.roles import OWNER

NAME = "backup-delete"
DELETING = "deleting"
_TRIES = 3


class BackupDeleteInput(OperationData):
    """The row of the backup, and its names for pages."""

    backup_id: int
    name: str
    destination: str = ""


BackupDeleteStep = Step[BackupDeleteInput, NoData]


def _deleting(step: BackupDeleteStep) -> Outcome:
    row = Backup.objects.select_related("destination").filter(pk=step.input.backup_id).first()
    if row is None:
        return Done("The backup was deleted already.")
    left = ""
    if row.destination is not None:
        try:
            storage.remove_copies(row.destination, [row.name])
        except BackupDestinationFailed as error:
            text = f"{error.detail} To give up the copy, delete the destination first."
            raise StepFailed(error.code, text, final=step.attempt + 1 >= _TRIES) from error
    elif row.copied_at is not None:
        left = f" Its copy at {row.destination_name} stays: that destination was deleted here."
    try:
        storage.remove_file(row)
    except OSError as error:
        text = f"{row.name} cannot be deleted: {error.strerror or error}. Check the disk."
        raise StepFailed("backup_disk_failed", text, final=step.attempt + 1 >= _TRIES) from error
    return Done(f"The backup was deleted.{left}")


def _end(step: BackupDeleteStep, outcome: str, _: str) -> None:
    if outcome == SUCCEEDED:
        Backup.objects.filter(pk=step.input.backup_id).delete()


KIND = Kind(
    name=NAME,
    title="Delete backup",
    concurrency_group="work",
    role=OWNER,
    Input=BackupDeleteInput,
    State=NoData,
    stages=(Stage(DELETING, "Delete the files", _deleting, long=True),),
    audit=Audit("backup.delete", target=lambda step: step.input.name, detail=lambda step, _: step.input.destination),
    on_end=_end,
    while_fenced=True,
    why_no_cancel=lambda _: "A deletion cannot be cancelled: a part of it may be done already.",
    display=Display(subject=lambda step: step.input.name),
)
