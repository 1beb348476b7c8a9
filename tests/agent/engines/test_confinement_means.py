"""The means of confinement: tried until they work, and what the driver must have made before an engine starts."""

from pathlib import Path

import pytest

from agent.config import AgentConfig
from agent.deliveries import confine, confinement

pytestmark = pytest.mark.unit

UNCONFINED = "Engines cannot be confined on this machine, so models do not start as processes."


@pytest.fixture(autouse=True)
def nothing_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confinement, "_found", {})
    monkeypatch.setattr(confinement, "_reachable", lambda policy, docker_host: ())
    monkeypatch.setattr(confine, "landlock_version", lambda: 5)


def test_means_that_failed_once_are_tried_again_and_kept_once_they_work(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [False, True]
    monkeypatch.setattr(confinement, "_works", lambda policy: answers.pop(0))
    config = AgentConfig()
    assert [confinement.means(config).problems for _ in range(4)] == [(UNCONFINED,), (), (), ()]


def test_a_kernel_without_landlock_is_said_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confine, "landlock_version", lambda: 0)
    (problem,) = confinement.means(AgentConfig()).problems
    assert problem == (
        "Engines that run as processes can read the agent's files: this kernel has no Landlock. Use Linux 5.13 "
        "or newer with landlock in its lsm= list, or run models in containers."
    )


def test_devices_that_appear_later_are_given_to_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confinement, "_works", lambda policy: True)
    seen = []
    for devices in (("/dev/null",), ("/dev/null", "/dev/nvidia0")):
        monkeypatch.setattr(confinement, "_devices", lambda devices=devices: devices)
        seen.append(confinement.means(AgentConfig()).policy.devices)
    assert seen == [("/dev/null",), ("/dev/null", "/dev/nvidia0")]


@pytest.mark.parametrize(
    ("present", "asked"),
    [((), False), (("nvidiactl",), True), (("nvidiactl", "nvidia-uvm"), False), (("nvidia-uvm",), False)],
)
def test_the_driver_makes_the_devices_of_cuda_when_they_are_wanting(
    tmp_path: Path, present: tuple[str, ...], asked: bool
) -> None:
    devices, programs = tmp_path / "dev", tmp_path / "bin"
    devices.mkdir()
    programs.mkdir()
    for name in present:
        (devices / name).touch()
    helper = programs / "nvidia-modprobe"
    helper.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\n')
    helper.chmod(0o755)
    confinement.create_cuda_devices(devices, str(programs))
    said = tmp_path / "asked"
    assert (said.read_text() if said.exists() else "") == ("-u -c 0\n" if asked else "")


@pytest.mark.parametrize("script", [None, "#!/bin/sh\nexit 1\n", "no program"])
def test_a_driver_without_a_working_helper_ends_nothing(tmp_path: Path, script: str | None) -> None:
    (tmp_path / "nvidiactl").touch()
    if script is not None:
        (tmp_path / "nvidia-modprobe").write_text(script)
        (tmp_path / "nvidia-modprobe").chmod(0o755)
    confinement.create_cuda_devices(tmp_path, str(tmp_path))
    assert not (tmp_path / "nvidia-uvm").exists()
