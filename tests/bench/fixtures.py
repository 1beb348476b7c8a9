"""Fixtures over real parts. Import what a test needs into its conftest."""

import os
from collections.abc import Iterator

import pytest

from tests.bench.docker import CannotRun, DockerBench


@pytest.fixture(scope="session")
def docker_bench() -> Iterator[DockerBench]:
    """A Docker Engine and a registry for this session. Skipped with its reason where none can run; in CI that fails."""
    try:
        bench = DockerBench().start()
    except CannotRun as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"no Docker Engine for the tests: {error}")
        pytest.skip(f"no Docker Engine for the tests: {error}")
    yield bench
    bench.close()
