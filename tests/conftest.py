"""What all tests share: settings of a throwaway master, before Django reads them."""

import os
import tempfile
from pathlib import Path

import django

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
