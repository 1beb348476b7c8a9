"""The literal table of kinds. Kinds do not import each other."""

from pydantic import ValidationError

from jobs.base import AnyKind, AnyStep
from jobs.kinds import (
    backup,
    backup_delete,
    ca_rotation,
    download,
    evacuate,
    image_pull,
    launch,
    move,
    restore,
    revoke,
    rotate_cert,
    stop,
    sweep,
    takeover,
    unplace,
)
from jobs.models import Operation

KINDS: dict[str, AnyKind] = {
    kind.name: kind
    for kind in (
        launch.KIND,
        stop.KIND,
        sweep.KIND,
        takeover.KIND,
        takeover.CONTINUATION,
        rotate_cert.KIND,
        revoke.KIND,
        ca_rotation.KIND,
        download.KIND,
        image_pull.KIND,
        move.KIND,
        evacuate.KIND,
        unplace.KIND,
        backup.KIND,
        backup_delete.KIND,
        restore.KIND,
    )
}

CONTINUE_FENCED: frozenset[str] = frozenset(kind.name for kind in KINDS.values() if kind.while_fenced)


def read(operation: Operation) -> tuple[AnyKind, AnyStep] | None:
    """Return the kind of an operation and its typed data; None when this version knows its kind or data not."""
    kind = KINDS.get(operation.kind)
    if kind is None:
        return None
    try:
        return kind, kind.step(operation)
    except ValidationError:
        return None
