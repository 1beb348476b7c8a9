"""A real broker, worker and beat as processes of their own, on the database of the test."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis
from django.conf import settings as django_settings
from django.db import connection

from mirbad.up import broker
from tests.waiting import until_no

ROOT = Path(__file__).resolve().parents[2]


class Broker:
    """A Valkey on a Unix socket."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = broker.url(folder)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> "Broker":
        conf = self.folder / "broker.conf"
        conf.write_text(broker.configuration(self.folder))
        self.process = subprocess.Popen([broker.binary(), conf], stdout=subprocess.DEVNULL)
        client = self.client()
        until_no(redis.RedisError, client.ping, 10)
        client.close()
        return self

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@contextmanager
def running_broker() -> Iterator[Broker]:
    """A broker for the length of the block; its folder is short, as socket paths must be."""
    with tempfile.TemporaryDirectory(prefix="mb-") as folder:
        made = Broker(Path(folder)).start()
        try:
            yield made
        finally:
            made.kill()


class Program:
    """One process of the master, which may be killed and started again."""

    def __init__(self, folder: Path, redis_url: str, *arguments: str) -> None:
        self.log = folder / f"{arguments[3]}.out"
        self._command = [sys.executable, "-m", *arguments]
        data = folder / "data"
        data.mkdir(exist_ok=True)
        self._environ = {
            **{name: text for name, text in os.environ.items() if not name.startswith("MIRBAD_")},
            "MIRBAD_DATA": str(data),
            "MIRBAD_REDIS_URL": redis_url,
            "MIRBAD_SECRET_KEY": os.environ["MIRBAD_SECRET_KEY"],
            "MIRBAD_OPERATION_LEASE": "3s",
            "DATABASE_URL": self._database(data),
        }
        self.process: subprocess.Popen[bytes] | None = None

    @staticmethod
    def _database(data: Path) -> str:
        name = connection.settings_dict["NAME"]
        if connection.vendor == "sqlite":
            link = data / "mirbad.sqlite3"
            if not link.exists():
                link.symlink_to(name)
            return ""
        at = django_settings.DATABASES["default"]
        return f"postgres://{at['USER']}:{at['PASSWORD']}@{at['HOST']}:{at['PORT']}/{name}"

    def start(self) -> "Program":
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(self._command, cwd=ROOT, env=self._environ, stdout=out, stderr=out)
        return self

    def kill(self) -> None:
        """``kill -9``."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")


CELERY = ("celery", "-A", "mirbad.celery")
WORKER = (*CELERY, "worker", "--without-gossip", "--without-mingle", "--without-heartbeat")
BEAT = (*CELERY, "beat", "--pidfile=")
