"""A machine with GPUs that are not there: a driver's library, its program, and the kernel's list of devices."""

from pathlib import Path

import pytest

from agent.telemetry.cards import Cards
from agent.telemetry.driver import DriverProcess
from tests.bench.nvml import FakeNvml

GIB = 2**30
A100: dict[str, object] = {
    "name": "NVIDIA A100-PCIE-40GB", "total": 40 * GIB, "used": 2 * GIB, "compute": "8.0", "utilization": 31,
    "temperature": 52, "power": 120_000, "limit": 250_000, "lanes": 16, "processes": "", "graphics": "",
}  # fmt: skip


def card(number: int, **changes: object) -> dict[str, object]:
    return A100 | {"uuid": f"GPU-{number}", "bus": f"00000000:{number + 0x41:02X}:00.0"} | changes


class Machine:
    """A driver's library, its program, and the kernel's list of devices, as a test describes them."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.devices = folder, folder / "devices"
        self.devices.mkdir()
        self._monkeypatch = monkeypatch
        self._driver = DriverProcess(limit_seconds=20)
        self.program = "no-such-smi"

    def library(self, *, old: bool = False) -> FakeNvml:
        fake = FakeNvml(self.folder, old=old)
        for name, value in fake.env.items():
            self._monkeypatch.setenv(name, value)
        return fake

    def smi(self, body: str) -> None:
        path = self.folder / "nvidia-smi"
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        self.program = str(path)

    def slot(self, address: str, *, lanes: int | str = 16, most: int = 16, speed: float = 16, slot: float = 16) -> None:
        """A card in a slot; speeds are GT/s, the card idles at the lowest."""
        bridge = self.folder / "bridges" / f"bridge-of-{address}"
        device = bridge / address
        device.mkdir(parents=True)
        (bridge / "max_link_speed").write_text(f"{slot:.1f} GT/s PCIe\n")
        for name, value in (
            ("vendor", "0x10de"), ("class", "0x030200"), ("current_link_width", lanes), ("max_link_width", most),
            ("current_link_speed", "2.5 GT/s PCIe"), ("max_link_speed", f"{speed:.1f} GT/s PCIe"),
        ):  # fmt: skip
            (device / name).write_text(f"{value}\n")
        (self.devices / address).symlink_to(device)

    def cards(self) -> Cards:
        return self._driver.cards(self.program, self.devices)

    def close(self) -> None:
        self._driver.close()
