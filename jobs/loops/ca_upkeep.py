"""Follows the flag files of a CA rotation, and looks after rotations without an operation and nodes with an old CA."""

import contextlib
from datetime import timedelta
from pathlib import Path

import structlog

from agent.wire.pki import PkiView
from jobs.kinds.ca_rotation import NAME
from jobs.models import Operation
from jobs.requests import ca_rotation
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
    """Check the flag files when due (at once after the start), then look after open and ended rotations."""
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
    """Follow the flag files and delete them, also after a refusal; return how many there were."""
    folder = settings().data / FOLDER
    with contextlib.suppress(OSError):  # an unwritable data folder is reported elsewhere
        folder.mkdir(mode=0o700, exist_ok=True)
    return _flag(folder / ROTATE) + _flag(folder / CLOSE)


def catch_up(node_id: str) -> bool:
    """Have a node that still trusts an old CA trust the current one alone; return whether it does now."""
    if not Node.objects.serving().filter(pk=node_id).exists():
        return False
    order = rotation.order()
    try:
        view = client.call(node_id, "PUT", "pki/trust", order, answer=PkiView, operation_id=new_operation_id())
    except MirbadError as error:
        log.info("a node that trusts an old CA could not be updated", node=node_id, why=error.detail)
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
    # A new file is another request, also when the first one could not be deleted.
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
            log.error("a flag file cannot be deleted; it is ignored from now on", path=str(path), why=error.strerror)
        _undeletable.add(key)
    return 1
