"""Set-up of all tests: settings of a throwaway master, before Django reads them."""

import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import django
import pytest
from pytest_django import DjangoDbBlocker

_DATA = Path(tempfile.mkdtemp(prefix="mirbad-test-"))
(_DATA / "static").mkdir()
for name in [name for name in os.environ if name.startswith("MIRBAD_") and not name.startswith("MIRBAD_TEST_")]:
    del os.environ[name]
os.environ["DATABASE_URL"] = os.environ.get("MIRBAD_TEST_DATABASE_URL", "")
os.environ["MIRBAD_DATA"] = str(_DATA)
os.environ["MIRBAD_SECRET_KEY"] = "a secret of the test suite, sealed with nothing real"
if redis_url := os.environ.get("MIRBAD_TEST_REDIS_URL"):
    os.environ["MIRBAD_REDIS_URL"] = redis_url

# Only now: pytest-django itself would read the settings before this file, and so a real master's data folder.
os.environ["DJANGO_SETTINGS_MODULE"] = "mirbad.settings"
django.setup()

# A file instead of memory: threads of a test then wait for each other's locks as processes do in a real master.
from django.conf import settings  # noqa: E402

if settings.DATABASES["default"]["ENGINE"].endswith("sqlite3"):
    settings.DATABASES["default"].setdefault("TEST", {})["NAME"] = str(_DATA / "test.sqlite3")

pytest_plugins = ["tests.people", "tests.bench.fixtures"]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that may take longest: none of them is then the last one, with idle workers beside it."""
    patience: dict[Path, float] = {}
    for item in items:
        mark = item.get_closest_marker("timeout")
        patience[item.path] = max(patience.get(item.path, 0), float(mark.args[0]) if mark and mark.args else 0)
    items.sort(key=lambda item: -patience[item.path])
    unmarked = [item.nodeid for item in items if item.get_closest_marker("django_db") and not _has_a_suite(item)]
    if unmarked:
        raise pytest.UsageError(f"These tests use a database and have no marker of a suite: {', '.join(unmarked[:5])}")


def _has_a_suite(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in ("app", "e2e", "faults", "browser", "container"))


@pytest.fixture(autouse=True)
def _process_as_it_was() -> Iterator[None]:
    """Put back the umask and the handlers of logs, which every process of the master sets as it starts."""
    root = logging.getLogger()
    umask, handlers, level = os.umask(0o022), root.handlers[:], root.level
    os.umask(umask)
    yield
    os.umask(umask)
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """End what a thread of the link still holds open: PostgreSQL drops no database that somebody uses."""
    yield
    from django.db import connection

    if connection.vendor == "postgresql":
        with django_db_blocker.unblock(), connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
