"""Messages of Docker and of NVIDIA's container tools about GPUs, as sentences with the next step.

They come from Docker, runc, the toolkit's hook, `nvidia-container-cli` and CDI, wrapped in each other, so the words
that tell the causes apart are searched in the whole text. The first rule that matches counts.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from agent.deliveries.base import DriverVersions
from agent.deliveries.docker_engine import NO_TOOLKIT

DRIVER_TOO_OLD, DRIVER_MISMATCH, DRIVER_MISSING = "gpu_driver_too_old", "gpu_driver_mismatch", "gpu_driver_missing"
DRIVER_SLOW, DEVICE_MISSING, CDI_DEVICES = "gpu_driver_slow", "gpu_device_missing", "gpu_cdi_devices"
ACCESS_DENIED, TOOLKIT_MISSING, TOOLKIT_FAILED = "gpu_access_denied", "gpu_toolkit_missing", "gpu_toolkit_failed"

_DRIVER_OF_CUDA = {
    (13, 1): 590, (13, 0): 580, (12, 9): 575, (12, 8): 570, (12, 7): 565, (12, 6): 560, (12, 5): 555, (12, 4): 550,
    (12, 3): 545, (12, 2): 535, (12, 1): 530, (12, 0): 525, (11, 8): 520, (11, 7): 515, (11, 6): 510, (11, 5): 495,
    (11, 4): 470, (11, 3): 465, (11, 2): 460, (11, 1): 455, (11, 0): 450, (10, 2): 440, (10, 1): 418, (10, 0): 410,
}  # fmt: skip
"""The first driver branch for each version of CUDA, by NVIDIA's release notes."""

_DRIVER_FILE = r"(?:/lib[\w-]*(?:nvidia|cuda)[\w.-]*\.so|/bin/nvidia-|nvidia-persistenced|/dev/nvidia)"
"""Not any path with the name in it: weights are in folders of that name, too."""

_CONDITION = re.compile(r"unsatisfied condition:? *(\w+) *(?:>=|>|=|<=|<) *(\d+(?:\.\d+)*)?", re.IGNORECASE)


@dataclass(frozen=True)
class GpuFailure:
    """The reason why a container got no GPU: a code for programs, and a sentence with the next step."""

    code: str
    text: str


_Rule = tuple[re.Pattern[str], Callable[[str, DriverVersions], GpuFailure]]


def _too_old(text: str, versions: DriverVersions) -> GpuFailure:
    match = _CONDITION.search(text)
    name, wanted = (match[1].lower(), match[2] or "") if match else ("", "")
    if name not in {"cuda", "driver", ""}:
        condition = match[0].partition(":")[2].strip() if match else ""
        return GpuFailure(TOOLKIT_FAILED, f"The image does not run on the GPUs of this node: it wants {condition}.")
    has = f"The driver of this node is {versions.driver}" if versions.driver else "The driver of this node is too old"
    has += f", which supports CUDA {versions.cuda} at most" if versions.cuda and versions.driver else ""
    needs = f"the image needs {'CUDA' if name == 'cuda' else 'driver'} {wanted}" if wanted else "the image needs more"
    to = _branch_for(wanted) if name == "cuda" else wanted
    update = f"Update the driver to {to} or newer" if to else "Update the driver"
    older = f"an image for CUDA {versions.cuda} or older" if versions.cuda else "an image for an older CUDA"
    return GpuFailure(DRIVER_TOO_OLD, f"{has}, and {needs}. {update}, or use {older}.")


def _branch_for(cuda: str) -> str:
    major, _, rest = cuda.partition(".")
    minor = rest.partition(".")[0] or "0"
    if not (major.isdecimal() and minor.isdecimal()):
        return ""
    return str(_DRIVER_OF_CUDA.get((int(major), int(minor)), ""))


def _rule(code: str, text: str, *patterns: str) -> _Rule:
    return re.compile("|".join(patterns), re.IGNORECASE | re.DOTALL), lambda _, versions: GpuFailure(code, text)


_TOOL = r"nvidia-(?:container-runtime|container-runtime-hook|container-toolkit|container-cli|ctk)"
_RULES: tuple[_Rule, ...] = (
    (re.compile("unsatisfied condition|please update your driver to a newer version", re.IGNORECASE), _too_old),
    _rule(
        DRIVER_MISMATCH,
        "The NVIDIA driver of this node was updated while it was loaded. Reboot the machine; or drain the node, and "
        "reload the driver's kernel modules once nothing uses the GPUs.",
        r"driver/library version mismatch",
        r"lib_rm_version_mismatch",
    ),
    _rule(
        DRIVER_MISSING,
        "WSL sees no NVIDIA GPU. Install or update the NVIDIA driver in Windows, then run wsl --shutdown. WSL 1 has no "
        "GPUs.",
        r"WSL environment detected but no adapters",
    ),
    _rule(
        DRIVER_SLOW,
        "The GPU driver of this node did not answer the container toolkit in time. Start its persistence daemon: "
        "systemctl enable --now nvidia-persistenced.",
        r"rpc error: timed out",
        r"driver rpc .*time",
    ),
    _rule(
        CDI_DEVICES,
        "Docker's list of GPUs (CDI) is missing, or is of another driver or other cards. Write it again: nvidia-ctk "
        "cdi "
        "generate --output=/etc/cdi/nvidia.yaml. Docker before 28 also needs its feature cdi.",
        r'could not select device driver \\*"?cdi',
        r"unresolvable CDI devices",
        r"failed to stat CDI host device",
        r"CDI device injection failed",
        r"failed to inject (?:CDI )?devices",
        r"failed to load CDI spec",
        rf"(?:fulfil mount request|error mounting).*{_DRIVER_FILE}.*no such file",
    ),
    _rule(
        ACCESS_DENIED,
        "The container toolkit may not use the GPUs of this node. Under Docker without root set no-cgroups = true in "
        "/etc/nvidia-container-runtime/config.toml; otherwise check the permissions of /dev/nvidia*.",
        r"insufficient permissions",
        r"permission error",
        r"BPF_CGROUP_DEVICE",
        r"failed to add device rules",
        r"(?:nvidia-c|/dev/nvidia|libnvidia)[^\n]*(?:permission denied|operation not permitted)",
    ),
    _rule(
        DRIVER_MISSING,
        "The NVIDIA driver of this node is not loaded. Install it or load it: nvidia-smi on the node must list the "
        "GPUs.",
        r"driver not loaded",
        r"driver_not_loaded",
        r"load library failed: libnvidia-ml",
        r"libnvidia-ml[^\n]*cannot open",
        r"driver error: failed to process request",
        r"couldn't communicate with the NVIDIA driver",
        r"failed to initialize NVML",
        r"nvml error: unknown error",
    ),
    _rule(
        DEVICE_MISSING,
        "The container toolkit does not find a GPU of this model. Compare nvidia-smi -L with the GPUs of the model, "
        "and "
        "choose them again.",
        r"nvidia-c[^\n]*(?:unknown device|device error)",
        r"adding custom device[^\n]*nvidia[^\n]*no such file",
        r"/dev/nvidia[^\n]*no such file",
    ),
    _rule(
        TOOLKIT_MISSING,
        NO_TOOLKIT,
        r"could not select device driver",
        r"(?:unknown|invalid) runtime[^\n]*nvidia",
        rf"{_TOOL}\S*:? (?:executable file not found|no such file)",
    ),
    _rule(
        TOOLKIT_FAILED,
        "The NVIDIA Container Toolkit of this node failed. Read what it says, and update it with the driver.",
        r"nvidia-container",
        r"nvidia-cdi-hook",
        r"nvidia-ctk",
    ),
)
_SAID = 400


def explain(text: str, versions: DriverVersions) -> GpuFailure | None:
    """Return what Docker's error `text` means for GPUs, with its own words at the end; None when it is about others."""
    tell = next((tell for pattern, tell in _RULES if pattern.search(text)), None)
    if tell is None:
        return None
    found = tell(text, versions)
    return GpuFailure(found.code, f"{found.text} Docker says: {_innermost(text)}")


def _innermost(text: str) -> str:
    """Return the end of a chain of errors, which has the cause; the head is the same for all of them."""
    at = max(text.rfind(mark) for mark in ("nvidia-container-cli:", "nvidia-ctk:", "stderr:", "CDI"))
    said = text[at:] if at >= 0 and len(text) > _SAID else text
    return " ".join(said.replace("\\n", " ").replace("\\", "").split())[:_SAID]
