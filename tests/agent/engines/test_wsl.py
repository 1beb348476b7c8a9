"""WSL: the driver's library and programs are in a folder of their own, and its device is /dev/dxg."""

import shutil
from pathlib import Path

import pytest

from agent import driver_places
from agent.capability import path_warnings
from agent.config import AgentConfig
from agent.deliveries import confinement, process
from agent.deliveries.base import RunSpec
from agent.telemetry import gpu
from agent.telemetry.driver import DriverProcess
from tests.bench.gpus import card
from tests.bench.nvml import FakeNvml


@pytest.fixture
def wsl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of WSL, empty; the loader and PATH know nothing of it."""
    folder = tmp_path / "wsl"
    folder.mkdir()
    monkeypatch.setattr(driver_places, "WSL", folder)
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    return folder


def test_the_library_is_found_where_wsl_puts_it(wsl: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml(wsl)
    fake.cards(card(0))
    monkeypatch.setenv("FAKE_NVML", fake.env["FAKE_NVML"])
    monkeypatch.setattr(gpu, "_driver", DriverProcess())
    assert gpu.is_expected("no-such-smi")
    found = gpu.read_cards("no-such-smi")
    assert [one.uuid for one in found.cards] == ["GPU-0"]


def test_the_program_is_found_where_wsl_puts_it(wsl: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = wsl / "wsl-smi"
    row = "0, GPU-0, RTX 4090, 24576, 512, 3, 40, 50, 8.9, 580.1, 00000000:01:00.0, 450"
    program.write_text(f"#!/bin/sh\ncase \"$1\" in --query-gpu*) echo '{row}';; *) exit 0;; esac\n")
    program.chmod(0o755)
    assert shutil.which("wsl-smi") is None
    assert gpu.is_expected("wsl-smi")
    monkeypatch.setattr(gpu, "_driver", DriverProcess())
    assert [one.uuid for one in gpu.read_cards("wsl-smi").cards] == ["GPU-0"]
    assert driver_places.program("/nowhere/wsl-smi") is None
    assert not any("nvidia_smi" in warning for warning in path_warnings(AgentConfig(nvidia_smi="wsl-smi")))


@pytest.mark.parametrize(
    ("is_wsl", "before", "after"),
    [(True, None, "{}"), (True, "/opt/cuda", "/opt/cuda:{}"), (False, None, None), (False, "/opt/cuda", "/opt/cuda")],
)
def test_the_loader_is_told_of_it_last(wsl: Path, is_wsl: bool, before: str | None, after: str | None) -> None:
    if is_wsl:
        (wsl / driver_places.LIBRARY).touch()
    assert driver_places.library_path(before) == (None if after is None else after.format(wsl))


def test_engines_find_the_library_and_the_owner_s_own_path_goes_before(wsl: Path, tmp_path: Path) -> None:
    order = RunSpec(instance_id="i", launch_id="l", argv=("/bin/true",), env={}, log=tmp_path / "log")
    assert "LD_LIBRARY_PATH" not in process._environment(order, tmp_path, AgentConfig())
    (wsl / driver_places.LIBRARY).touch()
    assert process._environment(order, tmp_path, AgentConfig())["LD_LIBRARY_PATH"] == str(wsl)
    own = AgentConfig(engine_env={"LD_LIBRARY_PATH": "/opt/cuda"})
    assert process._environment(order, tmp_path, own)["LD_LIBRARY_PATH"] == "/opt/cuda"


def test_the_confinement_allows_its_device_and_its_folder() -> None:
    assert "dxg" in confinement._DEVICES
    allowed = [Path(path) for path in confinement._PROGRAMS]
    for path in ("/usr/lib/wsl/lib/libcuda.so.1", "/usr/lib/wsl/drivers/nv_dispi.inf_amd64/libcuda.so.1.1"):
        assert any(Path(path).is_relative_to(place) for place in allowed)
