"""A broker as `make up` starts one, for tests that send through it."""

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from mirbad.up import broker
from tests.waiting import until


@contextlib.contextmanager
def running() -> Iterator[str]:
    """The MIRBAD_REDIS_URL of a fresh broker, in a short folder: socket paths end at 108 bytes."""
    runtime = Path(tempfile.mkdtemp(prefix="mb-"))
    (runtime / "broker.conf").write_text(broker.configuration(runtime))
    process = subprocess.Popen([broker.binary(), runtime / "broker.conf"], stdout=subprocess.DEVNULL)
    try:
        until(broker.socket_path(runtime).exists, "the broker's socket", 10)
        yield broker.url(runtime)
    finally:
        process.terminate()
        process.wait(10)
        shutil.rmtree(runtime, ignore_errors=True)
