"""NVIDIA's management library without a card: a small library built from C, which reads its answers from a file."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

_SOURCE = Path(__file__).with_name("fake_nvml.c")


class FakeNvml:
    """Cards that a test describes with `cards`; give `env` to the process that shall see them."""

    def __init__(self, folder: Path, *, old: bool = False) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            if os.environ.get("CI") == "true":
                pytest.fail("no C compiler to build the stand-in for NVML (apt package gcc)")
            pytest.skip("no C compiler to build the stand-in for NVML (apt package gcc)")
        self._answers = folder / "answers"
        library = folder / "libnvidia-ml.so.1"
        options = ["-DOLD"] if old else []
        command: list[str] = [
            compiler,
            "-shared",
            "-fPIC",
            "-O1",
            *options,
            "-D_GNU_SOURCE",
            "-o",
            str(library),
            str(_SOURCE),
        ]
        subprocess.run(command, check=True, capture_output=True)
        self.env = {"LD_LIBRARY_PATH": str(folder), "FAKE_NVML": str(self._answers)}
        self.cards()

    def cards(self, *cards: dict[str, object], **more: object) -> None:
        """Replace the answers. A key that is left out is not supported; ``"!15"`` is an error code."""
        answers: dict[str, object] = {"driver": "580.95.05", "count": len(cards)} | more
        for number, card in enumerate(cards):
            answers |= {f"{number}.{key}": value for key, value in card.items()}
        self._answers.write_text("".join(f"{key}={value}\n" for key, value in answers.items()))
