"""The literal table of kinds. Kinds do not know each other."""

from jobs.base import Kind
from jobs.kinds import (
    ca_rotation,
    download,
    evacuate,
    image_pull,
    launch,
    move,
    revoke,
    rotate_cert,
    stop,
    sweep,
    takeover,
    unplace,
)

KINDS: dict[str, Kind] = {
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
    )
}

GO_ON_FENCED: frozenset[str] = frozenset(kind.name for kind in KINDS.values() if kind.while_fenced)
