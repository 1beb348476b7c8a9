"""The process that does one errand at a destination: a line of JSON on stdin, a line of JSON on stdout.

It ends at once when stdin is closed, so it never outlives the process that sent it.
"""

import os
import secrets
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from jobs.backup.destinations import bucket, folder, mounted
from jobs.backup.destinations.base import DestinationStore, Opened, pieces_of, sha256_of
from jobs.backup.destinations.errand import DestinationAnswer, DestinationErrand
from jobs.backup.destinations.settings import FolderDestination, NfsDestination, S3Destination, SmbDestination
from jobs.errors import BackupDestinationFailed


def _opened(errand: DestinationErrand) -> Opened:
    settings, secret, point = errand.settings, errand.secret, Path(errand.mount_point)
    match settings:
        case FolderDestination():
            return folder.opened(Path(settings.path))
        case SmbDestination():
            return mounted.opened_smb(settings, secret, point)
        case NfsDestination():
            return mounted.opened_nfs(settings, secret, point)
        case S3Destination():
            return bucket.opened(settings, secret)


def _put(store: DestinationStore, errand: DestinationErrand) -> None:
    store.put(Path(errand.file), errand.names[0], errand.sha256)


def _remove(store: DestinationStore, errand: DestinationErrand) -> None:
    for name in errand.names:
        store.remove(name)


def _try(store: DestinationStore, _: DestinationErrand) -> None:
    """Write, read and delete a small file."""
    name = f"mirbad-try-{secrets.token_hex(4)}.txt"
    with tempfile.TemporaryDirectory() as here:
        file = Path(here) / name
        file.write_bytes(secrets.token_hex(2048).encode())
        digest = sha256_of(pieces_of(file))
        try:
            store.put(file, name, digest)
            if store.digest(name) != digest:
                raise BackupDestinationFailed("What was written there reads differently. Check its storage.")
        finally:
            store.remove(name)


_VERBS: dict[str, Callable[[DestinationStore, DestinationErrand], None]] = {"put": _put, "remove": _remove, "try": _try}


def _answer(errand: DestinationErrand) -> DestinationAnswer:
    try:
        with _opened(errand) as store:
            _VERBS[errand.verb](store, errand)
    except BackupDestinationFailed as error:
        return DestinationAnswer(problem=error.detail)
    except OSError as error:
        return DestinationAnswer(problem=f"{errand.settings.where}: {error.strerror or error}.")
    return DestinationAnswer()


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


def main() -> None:
    """Do the errand of stdin."""
    os.umask(0o077)
    errand = DestinationErrand.model_validate_json(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    answer = _answer(errand)
    sys.stdout.write(answer.model_dump_json() + "\n")
    sys.stdout.flush()
    os._exit(0)  # an unmount that hangs is the kernel's business, not this errand's


if __name__ == "__main__":
    main()
