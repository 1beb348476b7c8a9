"""The flag files of a CA rotation, rotations that nobody drives, and nodes that were left with a former CA."""

import contextlib
from datetime import timedelta
from pathlib import Path

import structlog

from agent.wire.pki import PkiView
from jobs import ca_rotation
from jobs.kinds.ca_rotation import NAME
from jobs.models import Operation
from mirbad.kernel import clock
from mirbad.kernel.actor import CONFIG
from mirbad.kernel.conf import settings
from mirbad.kernel.errors import MirbadError
from mirbad.kernel.ids import new_operation_id
from nodes import fencing
from nodes.link import client
from nodes.models import Node
from nodes.pki import members, rotation

log = structlog.get_logger(__name__)

ROTATE, CLOSE = "rotate-ca", "close-ca-rotation"
FOLDER = "pki"

_looked: list[float] = []
_undeletable: set[str] = set()


def tick() -> None:
    """Look at the flag files if it is time (at once after the start), and after what an ended rotation left over."""
    interval: timedelta = settings().pki_flag_interval
    now = clock.monotonic()
    if not _looked or now - _looked[-1] >= interval.total_seconds():
        _looked[:] = [now]
        look_at_flags()
    if fencing.is_fenced():
        return
    found = rotation.opened()
    if found is not None:
        ca_rotation.take_up(found)
        return
    for node_id in members.tidy():
        catch_up(node_id)


def look_at_flags() -> int:
    """Do what the flag files ask for, and delete them, also when it is refused; how many there were."""
    folder = settings().data / FOLDER
    with contextlib.suppress(OSError):  # a data folder of which nothing can be made has worse to say elsewhere
        folder.mkdir(mode=0o700, exist_ok=True)
    return _flag(folder / ROTATE) + _flag(folder / CLOSE)


def catch_up(node_id: str) -> bool:
    """Tell a node that still trusts a former CA to trust the present one alone; says whether it does now."""
    if not Node.objects.serving().filter(pk=node_id).exists():
        return False
    order = rotation.order()
    try:
        view = client.call(node_id, "PUT", "pki/trust", order, answer=PkiView, operation_id=new_operation_id())
    except MirbadError as error:
        log.info("a node that trusts a former CA could not be told", node=node_id, why=error.detail)
        return False
    if view.trust_bundle_hash != rotation.bundle_hash(order.ca_bundle):
        return False
    members.caught_up(node_id)
    return True


def _flag(path: Path) -> int:
    try:
        found = path.lstat()
    except OSError:
        return 0
    # Made anew it is another wish, also when the first one could not be deleted.
    key = f"{path.name}:{found.st_ino}:{found.st_mtime_ns}"
    if key not in _undeletable and not Operation.objects.filter(kind=NAME, input__flag=key).exists():
        try:
            if path.name == ROTATE:
                ca_rotation.start(CONFIG, flag=key)
            else:
                ca_rotation.close(CONFIG)
        except MirbadError as error:
            refused = f"CA rotation flag {path.name} refused: {error.detail}"
            log.warning(refused)
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        if key not in _undeletable:
            log.error("a flag file cannot be deleted; it is not looked at again", path=str(path), why=error.strerror)
        _undeletable.add(key)
    return 1
