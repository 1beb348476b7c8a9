"""The limit of open files."""

import resource
import subprocess
import sys

import pytest

pytestmark = pytest.mark.unit

CODE = """
import resource
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
from mirbad.kernel import files
print(files.allow_many() == hard == resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def test_a_process_may_open_as_many_files_as_the_system_grants() -> None:
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] > 64
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "True", done.stderr
