"""Messages of Docker and NVIDIA's container tools about GPUs: each cause is told apart and has its own next step."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import docker.errors
import pytest

from agent.deliveries import docker_container, docker_gpus
from agent.deliveries.base import DriverVersions, ImageSpec, RunSpec
from agent.deliveries.docker import DockerDelivery
from agent.deliveries.docker_engine import NO_TOOLKIT
from agent.running import last_words
from tests.agent.engines.test_docker_answers import CREATE, HERE, ORDER, container
from tests.bench.fake_docker import Answer, FakeDocker

pytestmark = pytest.mark.unit

SHIM = (
    "failed to create task for container: failed to create shim task: OCI runtime create failed: runc create failed: "
    "unable to start container process: error during container init: error running prestart hook #0: exit status 1, "
    "stdout: , stderr: Auto-detected mode as 'legacy'\\n"
)
OLD_SHIM = (
    'OCI runtime create failed: container_linux.go:349: starting container process caused "process_linux.go:449: '
    'container init caused \\"process_linux.go:432: running prestart hook 1 caused \\\\\\"error running hook: exit '
    "status 1, stdout: , stderr: "
)
MESSAGES = [
    # too old
    (
        SHIM
        + "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8, please update your driver to "
        "a newer version, or use an earlier cuda container: unknown",
        docker_gpus.DRIVER_TOO_OLD,
    ),
    (
        OLD_SHIM
        + 'nvidia-container-cli: requirement error: unsatisfied condition: cuda>=10.0\\\\\\\\n\\\\\\"\\"": unknown',
        docker_gpus.DRIVER_TOO_OLD,
    ),
    (
        (
            "oci runtime error: stderr: exec command: [/usr/bin/nvidia-container-cli --load-kmods configure "
            "--require=cuda>=9.0 --pid=4781]\\nnvidia-container-cli: requirement error: unsatisfied condition: cuda "
            ">= 9.0\\n"
        ),
        docker_gpus.DRIVER_TOO_OLD,
    ),
    (SHIM + "nvidia-container-cli: requirement error: unsatisfied condition: driver>=525", docker_gpus.DRIVER_TOO_OLD),
    (
        (
            "could not apply required modification to OCI specification: requirements not met: unsatisfied condition: "
            "cuda>=12.8 (cuda=12.4)"
        ),
        docker_gpus.DRIVER_TOO_OLD,
    ),
    (SHIM + "nvidia-container-cli: requirement error: unsatisfied condition: arch>=8.0", docker_gpus.TOOLKIT_FAILED),
    # driver and library differ
    (
        SHIM + "nvidia-container-cli: initialization error: nvml error: driver/library version mismatch: unknown",
        docker_gpus.DRIVER_MISMATCH,
    ),
    (
        "failed to generate CDI spec: failed to initialize NVML: ERROR_LIB_RM_VERSION_MISMATCH",
        docker_gpus.DRIVER_MISMATCH,
    ),
    # no driver
    (
        SHIM + "nvidia-container-cli: initialization error: nvml error: driver not loaded: unknown.",
        docker_gpus.DRIVER_MISSING,
    ),
    (
        SHIM + "nvidia-container-cli: initialization error: load library failed: libnvidia-ml.so.1: cannot open shared "
        "object file: no such file or directory: unknown",
        docker_gpus.DRIVER_MISSING,
    ),
    (
        OLD_SHIM + "nvidia-container-cli: initialization error: driver error: failed to process request\\\\\\\\n",
        docker_gpus.DRIVER_MISSING,
    ),
    (
        SHIM
        + "nvidia-container-cli: initialization error: WSL environment detected but no adapters were found: unknown",
        docker_gpus.DRIVER_MISSING,
    ),
    (
        SHIM + "nvidia-container-cli: initialization error: driver rpc error: timed out: unknown",
        docker_gpus.DRIVER_SLOW,
    ),
    # CDI
    ('could not select device driver "cdi" with capabilities: []', docker_gpus.CDI_DEVICES),
    (
        (
            "failed to create task for container: failed to create shim task: OCI runtime create failed: could not "
            "apply "
            "required modification to OCI specification: error modifying OCI spec: failed to inject CDI devices: "
            "unresolvable CDI devices nvidia.com/gpu=all: unknown"
        ),
        docker_gpus.CDI_DEVICES,
    ),
    ("CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=GPU-2f68f999", docker_gpus.CDI_DEVICES),
    (
        'failed to inject devices: failed to stat CDI host device "/dev/nvidia1": no such file or directory',
        docker_gpus.CDI_DEVICES,
    ),
    (
        (
            "failed to fulfil mount request: open /usr/lib/x86_64-linux-gnu/libEGL_nvidia.so.550.54.14: no such "
            "file or "
            "directory"
        ),
        docker_gpus.CDI_DEVICES,
    ),
    (
        (
            "runc create failed: unable to start container process: error during container init: error mounting "
            '"/usr/lib/x86_64-linux-gnu/libcuda.so.535.161.07" to rootfs at "/usr/lib/libcuda.so": no such file '
            "or directory"
        ),
        docker_gpus.CDI_DEVICES,
    ),
    # no such card
    (SHIM + "nvidia-container-cli: device error: GPU-7d1f: unknown device: unknown", docker_gpus.DEVICE_MISSING),
    (SHIM + "nvidia-container-cli: device error: 3: unknown device: unknown.", docker_gpus.DEVICE_MISSING),
    (
        'error gathering device information while adding custom device "/dev/nvidia0": no such file or directory',
        docker_gpus.DEVICE_MISSING,
    ),
    # permission
    (
        SHIM + "nvidia-container-cli: permission error: capability change failed: operation not permitted",
        docker_gpus.ACCESS_DENIED,
    ),
    (
        SHIM + "nvidia-container-cli: initialization error: nvml error: insufficient permissions: unknown",
        docker_gpus.ACCESS_DENIED,
    ),
    (
        SHIM
        + "nvidia-container-cli: mount error: failed to add device rules: unable to find any existing device filters "
        "attached to the cgroup: bpf_prog_query(BPF_CGROUP_DEVICE) failed: operation not permitted: unknown",
        docker_gpus.ACCESS_DENIED,
    ),
    # no toolkit
    ('could not select device driver "nvidia" with capabilities: [[gpu]]', docker_gpus.TOOLKIT_MISSING),
    ('could not select device driver "" with capabilities: [[gpu]]', docker_gpus.TOOLKIT_MISSING),
    ("unknown or invalid runtime name: nvidia", docker_gpus.TOOLKIT_MISSING),
    (
        "error running hook #0: fork/exec /usr/bin/nvidia-container-runtime-hook: no such file or directory",
        docker_gpus.TOOLKIT_MISSING,
    ),
    ('exec: "nvidia-container-cli": executable file not found in $PATH', docker_gpus.TOOLKIT_MISSING),
    # the toolkit itself
    (
        SHIM + "nvidia-container-cli: ldcache error: open failed: /sbin/ldconfig.real: no such file",
        docker_gpus.TOOLKIT_FAILED,
    ),
    (
        SHIM + "nvidia-container-cli: mount error: stat failed: /GeForce: no such file or directory",
        docker_gpus.TOOLKIT_FAILED,
    ),
    (
        SHIM + "nvidia-container-cli: container error: cgroup subsystem devices not found: unknown",
        docker_gpus.TOOLKIT_FAILED,
    ),
]
NODE = DriverVersions("550.144.03", "12.4")


@pytest.mark.parametrize(("message", "code"), MESSAGES)
def test_each_message_has_the_code_of_its_cause_and_is_quoted(message: str, code: str) -> None:
    found = docker_gpus.explain(message, NODE)
    assert found is not None
    assert found.code == code
    assert (NO_TOOLKIT in found.text) is (code == docker_gpus.TOOLKIT_MISSING)
    assert "Docker says: " in found.text
    assert len(found.text) < 900


@pytest.mark.parametrize(
    "message",
    [
        "no such image: engine",
        'error mounting "/srv/models/llama" to rootfs: no such file or directory',
        'error mounting "/srv/models/nvidia/Llama-3.1-Nemotron" to rootfs: no such file or directory',
        'error mounting "/srv/models/nvidia-llama/model.safetensors" to rootfs: permission denied',
        "failed to create network: unknown device eth7",
        "unknown runtime specified: kata",
        "failed to set up container networking: driver failed programming external connectivity",
        "",
    ],
)
def test_other_messages_are_not_about_gpus(message: str) -> None:
    assert docker_gpus.explain(message, NODE) is None


@pytest.mark.parametrize(
    ("condition", "versions", "says"),
    [
        (
            "cuda>=12.8",
            NODE,
            (
                "The driver of this node is 550.144.03, which supports CUDA 12.4 at most, and the image needs CUDA "
                "12.8. "
                "Update the driver to 570 or newer, or use an image for CUDA 12.4 or older."
            ),
        ),
        (
            "cuda>=13.0",
            DriverVersions("570.10", None),
            (
                "The driver of this node is 570.10, and the image needs CUDA 13.0. Update the driver to 580 or "
                "newer, or use "
                "an image for an older CUDA."
            ),
        ),
        (
            "driver>=525",
            DriverVersions(),
            (
                "The driver of this node is too old, and the image needs driver 525. Update the driver to 525 or "
                "newer, or use "
                "an image for an older CUDA."
            ),
        ),
        (
            "cuda>=77.7",
            NODE,
            (
                "The driver of this node is 550.144.03, which supports CUDA 12.4 at most, and the image needs CUDA "
                "77.7. "
                "Update the driver, or use an image for CUDA 12.4 or older."
            ),
        ),
    ],
)
def test_a_driver_that_is_too_old_is_named_with_the_one_that_is_needed(
    condition: str, versions: DriverVersions, says: str
) -> None:
    text = f"nvidia-container-cli: requirement error: unsatisfied condition: {condition}, please update your driver"
    found = docker_gpus.explain(text, versions)
    assert found is not None
    assert found.text.startswith(says)


def test_a_container_without_gpus_never_hears_of_the_toolkit() -> None:
    error = docker.errors.APIError("x", explanation=MESSAGES[0][0])
    assert docker_container.failed(error).code == "delivery_failed"
    assert docker_container.failed(error, NODE).code == docker_gpus.DRIVER_TOO_OLD


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[FakeDocker]:
    with FakeDocker(tmp_path / "docker.sock") as fake:
        yield fake


def order(gpus: tuple[str, ...] | None) -> RunSpec:
    image = ORDER.image
    assert isinstance(image, ImageSpec)
    return replace(ORDER, image=replace(image, gpus=gpus, versions=NODE))


@pytest.mark.parametrize(
    ("gpus", "made", "dropped"),
    [
        (("GPU-1",), {"DeviceRequests": [{"Driver": "nvidia", "DeviceIDs": ["GPU-1"]}]}, False),
        (("GPU-1",), {"DeviceRequests": None}, True),
        (("GPU-1",), {}, True),
        ((), {"DeviceRequests": []}, True),
        (None, {"DeviceRequests": None}, False),
    ],
)
async def test_a_socket_that_drops_the_request_for_gpus_is_known(
    engine: FakeDocker, gpus: tuple[str, ...] | None, made: dict[str, object], dropped: bool
) -> None:
    engine.answers = {
        CREATE: [Answer(201, {"Id": "c1", "Warnings": []})],
        "GET /containers/c1/json": [Answer(body={**container(), "HostConfig": made})],
        "POST /containers/c1/start": [Answer(204)],
        "GET /images/i/json": [HERE],
    }
    delivery = DockerDelivery(engine.host, "f", "n")
    assert (await delivery.start(order(gpus))).without_gpus is dropped
    await delivery.close()


@pytest.mark.parametrize(
    ("line", "in_container", "says"),
    [
        (
            "RuntimeError: The NVIDIA driver on your system is too old (found version 12020)",
            False,
            "Update the driver",
        ),
        ("CUDA error: CUDA driver version is insufficient for CUDA runtime version", False, "Update the driver"),
        ("forward compatibility was attempted on non supported HW", True, "Update the driver"),
        ("Failed to initialize NVML: Driver/library version mismatch", True, "Reboot"),
        ("ggml_cuda_init: failed to initialize CUDA: no CUDA-capable device is detected", False, "sees no GPU"),
        ("OSError: [Errno 30] Read-only file system: '/opt/app/cache'", True, "engine_writable_root"),
        ("OSError: [Errno 30] Read-only file system: '/opt/app/cache'", False, ""),
        ("ImportError: /tmp/x.so: failed to map segment from shared object", True, "engine_writable_root"),
        ("ValueError: unknown model architecture", True, ""),
    ],
)
def test_the_last_words_of_an_engine_may_mean_the_machine(line: str, in_container: bool, says: str) -> None:
    found = last_words.meaning(("loading", line, "exit"), in_container=in_container)
    assert (says in found) if says else found == ""
