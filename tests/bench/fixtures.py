"""Fixtures over real parts, one for the whole session: a plugin of the tests."""

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
