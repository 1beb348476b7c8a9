"""The GPUs of a node as choices of a form."""

from agent.common.gpu_label import gpu_label
from agent.wire.capability import Capabilities
from mirbad.web import parts


def gpu_choices(capabilities: Capabilities | None) -> tuple[tuple[str, str], ...]:
    """Return (UUID, words) of each reported GPU; none before the node has reported."""
    return tuple(
        (gpu.uuid, parts.gpu_words(gpu_label(gpu.index, gpu.uuid), gpu.name, gpu.memory_bytes))
        for gpu in (capabilities.gpus if capabilities is not None else ())
    )
