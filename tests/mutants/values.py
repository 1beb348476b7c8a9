"""Modules of tables: each mutant is the whole module with one value changed, in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.mutants import engine, operators
from tests.mutants.table import Target


def names(folder: Path, target: Target) -> list[str]:
    """Write every mutant of `target` into `folder` and return their names."""
    script = "from tests.mutants import values; values.write_mutants()"
    subprocess.run(
        [sys.executable, "-c", script, target.module],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(engine.ROOT)},
        check=True,
    )
    return sorted(path.stem for path in (folder / "sources").iterdir())


def write_mutants() -> None:
    """Write the mutants: the child of `names`."""
    import libcst as cst
    from mutmut.mutation.file_mutation import create_mutations, deep_replace

    operators.install()
    path = Path(sys.argv[1])
    module, mutations, _, _ = create_mutations(str(path), path.read_text())
    Path("sources").mkdir()
    for number, mutation in enumerate(mutations):
        mutated = deep_replace(module, mutation.original_node, mutation.mutated_node)
        assert isinstance(mutated, cst.Module)
        before, after = path.read_text().splitlines(), mutated.code.splitlines()
        pairs = [(a, b) for a, b in zip(before, after, strict=False) if a != b] or [("", "")]
        changed = f"- {pairs[0][0].strip()}\n+ {pairs[0][1].strip()}"
        (Path("sources") / f"{number:03}.json").write_text(json.dumps({"code": mutated.code, "change": changed}))


def _read(folder: Path, name: str) -> dict[str, str]:
    return json.loads((folder / "sources" / f"{name}.json").read_text())


def run(folder: Path, mutants: list[str]) -> int:
    """Run each of `mutants` on a copy of its module."""
    settings = (folder / "pyproject.toml").read_text()
    target = settings.split("only_mutate = ", 1)[1].splitlines()[0]
    tests = json.loads(settings.split("pytest_add_cli_args_test_selection = ", 1)[1].splitlines()[0])
    module = folder / json.loads(target)[0]
    package = folder / module.relative_to(folder).parts[0]
    _own(package)
    (folder / "tests").unlink()
    (folder / "tests").mkdir()
    for path in (engine.ROOT / "tests").iterdir():
        (folder / "tests" / path.name).symlink_to(path)
    _own(folder / "tests" / "architecture")
    found = {}
    for name in mutants:
        module.unlink()
        module.write_text(_read(folder, name)["code"])
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:randomly", "-p", "no:cacheprovider", *tests],
            cwd=folder,
            capture_output=True,
            check=False,
        )
        found[name] = "killed" if done.returncode else "survived"
        (folder / "outcomes.json").write_text(json.dumps(found))
    return 0


def _own(package: Path) -> None:
    """Put a folder of links in the place of the link to a folder, so that one file of it can be replaced."""
    source = package.resolve()
    package.unlink()
    package.mkdir()
    for path in source.iterdir():
        (package / path.name).symlink_to(path)


def outcomes(folder: Path, target: Target) -> dict[str, str]:
    """Return the status of each mutant that has been run."""
    path = folder / "outcomes.json"
    return json.loads(path.read_text()) if path.exists() else {}


def changes(folder: Path, target: Target, mutants: list[str]) -> dict[str, str]:
    """Return what each of `mutants` changes."""
    return {name: _read(folder, name)["change"] for name in mutants}
