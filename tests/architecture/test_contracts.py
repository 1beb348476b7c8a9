"""The import contracts name modules that exist: a contract on a missing module passes silently."""

import tomllib
from pathlib import Path

from tests.architecture.source import ROOT


def _exists(module: str) -> bool:
    module = module.removesuffix(".*")
    path = ROOT / Path(*module.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def _contracts() -> list[dict[str, object]]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]


def test_every_module_of_a_contract_exists() -> None:
    missing = []
    own = ("mirbad", "audit", "nodes", "models_app", "jobs", "agent")
    for contract in _contracts():
        containers = contract.get("containers", [""])
        assert isinstance(containers, list)
        for layer in contract.get("layers", []):  # type: ignore[attr-defined]
            for module in str(layer).split("|"):
                module = module.strip()
                missing += [
                    f"{contract['name']}: {full}"
                    for container in containers
                    if not _exists(full := f"{container}.{module}".lstrip("."))
                ]
        for key in ("source_modules", "forbidden_modules", "modules"):
            for module in contract.get(key, []):  # type: ignore[attr-defined]
                if str(module).split(".")[0] in own and not _exists(str(module)):
                    missing.append(f"{contract['name']}: {module}")
    assert not missing
