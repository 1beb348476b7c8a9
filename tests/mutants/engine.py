"""One target in a folder of its own: mutmut's input, its run, and its output. The working folder is that folder."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.mutants import operators
from tests.mutants.table import Target

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("mirbad", "audit", "nodes", "models_app", "jobs", "agent")
COPIED = ("templates", "docs", "deploy", "requirements", "manage.py", "CONTRIBUTING.md", "README.md", "CHANGELOG.md")
KILLED = {"killed", "timeout", "segfault", "check was interrupted by user", "suspicious"}


def prepare(folder: Path, target: Target) -> None:
    """Make `folder` a view of the tree for mutmut, with its settings for `target`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    present = [name for name in (*PACKAGES, *COPIED, "tests") if (ROOT / name).exists()]
    for name in present:
        (folder / name).symlink_to(ROOT / name)
    settings = {
        "source_paths": [name for name in PACKAGES if name in present],
        "only_mutate": [target.module],
        "also_copy": [name for name in COPIED if name in present],
        "pytest_add_cli_args_test_selection": list(target.tests),
        "pytest_add_cli_args": [
            *("-p", "no:randomly", "-p", "no:cacheprovider"),
            *("-m", "not (e2e or faults or browser or container)"),
        ],
        "process_isolation": "forkserver",
        "timeout_multiplier": 4.0,
        "timeout_constant": 12.0,  # of the clock: a machine that is busy with other things must not look like a kill
        "use_git_change_detection": False,
        "use_setproctitle": False,
    }
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    own = (ROOT / "pyproject.toml").read_text().rstrip()
    (folder / "pyproject.toml").write_text("\n".join([own, "", "[tool.mutmut]", *lines, ""]))


def names(folder: Path, target: Target) -> list[str]:
    """Return the name of every mutant inside of a function of `target`."""
    script = "from tests.mutants import engine; engine.print_names()"
    done = subprocess.run(
        [sys.executable, "-c", script, target.module],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def print_names() -> None:
    """Print the names as JSON: the child of `names`."""
    from mutmut.mutation.file_mutation import mutate_file_contents
    from mutmut.utils.format_utils import get_mutant_name

    operators.install()
    path = Path(sys.argv[1])
    found = mutate_file_contents(str(path), path.read_text()).mutant_names
    print(json.dumps([get_mutant_name(path, name) for name in found]))


def run(folder: Path, mutants: list[str]) -> int:
    """Run `mutants` and return mutmut's exit code."""
    script = "from tests.mutants import engine; engine.run_here()"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MIRBAD_")}
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,
        env={**environ, "PYTHONPATH": str(ROOT)},
        input=json.dumps(mutants),
        text=True,
        stdout=(folder / "output").open("w"),
        stderr=subprocess.STDOUT,
        check=False,
    ).returncode


def run_here() -> None:
    """Run the mutants that standard input names: the child of `run`."""
    from mutmut.__main__ import _run

    operators.install()
    mutants = json.load(sys.stdin)
    sys.path[:] = [entry for entry in sys.path if entry not in ("", str(ROOT))]
    sys.path.insert(0, "")
    for name in [name for name in sys.modules if name == "tests" or name.startswith("tests.")]:
        del sys.modules[name]  # the copies that the tests import are those below mutants/
    del os.environ["PYTHONPATH"]
    _run(mutants, 1)


def outcomes(folder: Path, target: Target) -> dict[str, str]:
    """Return the status of each mutant that has been run, by its name."""
    from mutmut.stats import status_by_exit_code

    meta = folder / "mutants" / f"{target.module}.meta"
    if not meta.exists():
        return {}
    codes = json.loads(meta.read_text())["exit_code_by_key"]
    return {name: status_by_exit_code[code] for name, code in codes.items() if code is not None}


def changes(folder: Path, target: Target, mutants: list[str]) -> dict[str, str]:
    """Return what each of `mutants` changes: the lines of its diff that begin with - or +, without their indent."""
    script = "from tests.mutants import engine; engine.print_changes()"
    done = subprocess.run(
        [sys.executable, "-c", script, target.module, *mutants],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def print_changes() -> None:
    """Print the diffs as JSON: the child of `changes`."""
    from mutmut.mutation.diff_apply import get_diff_for_mutant

    found = {}
    for name in sys.argv[2:]:
        lines = get_diff_for_mutant(name, path=Path(sys.argv[1])).splitlines()
        changed = [line for line in lines if line[:1] in "-+" and line[:3] not in ("---", "+++")]
        found[name] = "\n".join(f"{line[0]} {line[1:].strip()}" for line in changed)
    print(json.dumps(found))
