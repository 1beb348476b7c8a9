"""The short name of a GPU, the same in logs, refusals, API texts and pages."""

GONE_GPU = "GPU —"
"""The label of a GPU that its node no longer reports: its old index may belong to another card now."""

_SHOWN_OF_UUID = 8


def gpu_label(index: int | None, uuid: str) -> str:
    """Return ``GPU 1``, or ``GPU`` and the end of its UUID when the driver gave no index."""
    return f"GPU {index}" if index is not None else f"GPU {uuid[-_SHOWN_OF_UUID:]}".rstrip()


def gone_gpu_label(node_id: str) -> str:
    """Return the label of a GPU that was chosen on `node_id` and that the node no longer reports."""
    return f"{GONE_GPU} · no longer on {node_id}"
