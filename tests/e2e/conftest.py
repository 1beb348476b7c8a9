"""Fleets for the tests of this folder."""

import subprocess
import sys

import pytest

from tests.e2e.fleet import ROOT, fleets


@pytest.fixture
def make_fleet(tmp_path):
    """Makes complete masters; they are closed after the test."""
    yield from fleets(tmp_path)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """One running master without a model, for all tests of a module."""
    for make in fleets(tmp_path_factory.mktemp("fleet")):
        yield make().start()


@pytest.fixture(scope="session")
def wheels(tmp_path_factory):
    """The agent's locked libraries as files: a second machine has no network but the cable to the master."""
    folder = tmp_path_factory.mktemp("wheels")
    pip = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--require-hashes"]
    subprocess.run([*pip, "-r", ROOT / "requirements" / "agent.txt", "-d", folder], check=True)
    return folder
