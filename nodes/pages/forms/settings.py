"""The form of a node's settings. It parses input; the rules are in `nodes.registry`."""

from decimal import Decimal
from typing import Any

from django import forms
from django.forms import BoundField

from agent.common.gpu_label import gpu_label
from agent.wire.capability import MemoryModel
from nodes import queries
from nodes.models import Gpu, Node

GIB = 1024**3
_CODE = {"spellcheck": "false", "autocapitalize": "none", "autocomplete": "off"}
_RESERVE = "gpu_reserve_"


def _gib(label: str, help_text: str) -> forms.DecimalField:
    return forms.DecimalField(
        label=label, required=False, min_value=0, max_digits=8, decimal_places=2, help_text=help_text
    )


def _image(label: str) -> forms.CharField:
    return forms.CharField(
        label=label,
        max_length=255,
        required=False,
        help_text="Used by models without their own image.",
        widget=forms.TextInput(attrs=_CODE),
    )


def _digest(label: str) -> forms.RegexField:
    return forms.RegexField(
        label=label,
        regex=r"^sha256:[0-9a-f]{64}$",
        required=False,
        help_text="sha256: and 64 hex digits. The agent pulls exactly this image.",
        error_messages={"invalid": "Use sha256: and 64 lower-case hex digits."},
        widget=forms.TextInput(attrs=_CODE),
    )


class NodeSettingsForm(forms.Form):
    """The settings of one node; an empty limit is the agent's default. On a discrete node each GPU has a reserve."""

    display_name = forms.CharField(label="Display name", max_length=100, required=False)
    address = forms.CharField(label="Agent address", max_length=255, help_text="Address the master connects to.")
    port = forms.IntegerField(label="Agent port", min_value=1, max_value=65535)
    labels = forms.CharField(
        label="Labels",
        required=False,
        help_text="One name=value per line.",
        widget=forms.Textarea(attrs={"rows": 3, "spellcheck": "false"}),
    )
    memory_reserve_gib = _gib("Memory reserve, GiB", "Host memory that engines never use. Empty: the agent's default.")
    max_concurrent_starts = forms.IntegerField(
        label="Concurrent starts",
        required=False,
        min_value=1,
        max_value=32,
        help_text="Models that start at the same time; at most one per GPU. Empty: the agent's default.",
    )
    default_image = _image("Default vLLM image")
    default_image_digest = _digest("Digest of the vLLM image")
    default_llama_image = _image("Default llama.cpp image")
    default_llama_image_digest = _digest("Digest of the llama.cpp image")

    def __init__(self, node: Node, data: Any = None) -> None:
        super().__init__(data, initial=_initial(node))
        self.gpus: tuple[Gpu, ...] = _with_reserve(node)
        for gpu in self.gpus:
            gone = "" if gpu.present else " The node no longer reports this GPU."
            name = f"{gpu.name or 'Name not reported'}. Empty: no reserve.{gone}"
            self.fields[_RESERVE + gpu.uuid] = _gib(f"{gpu_label(gpu.index, gpu.uuid)} reserve, GiB", name)
        if self.gpus:
            self.fields["memory_reserve_gib"].label = "Host RAM reserve, GiB"

    @classmethod
    def of(cls, node: Node, data: Any = None) -> "NodeSettingsForm":
        """Return the form with the node's present values; its GPUs are prefetched or read."""
        return cls(node, data)

    @property
    def groups(self) -> tuple[tuple[str, str, tuple[BoundField, ...]], ...]:
        """The fields in groups: title, a sentence or "", fields."""
        reserves = tuple(_RESERVE + gpu.uuid for gpu in self.gpus)
        shown = (
            ("Name and address", "", ("display_name", "address", "port", "labels")),
            ("Memory and starts", "", ("memory_reserve_gib", "max_concurrent_starts", *reserves)),
            ("Default images", "", _IMAGES),
        )
        return tuple((title, hint, tuple(self[name] for name in names)) for title, hint, names in shown)

    def clean_labels(self) -> dict[str, str]:
        """Parse ``name=value`` lines to a dict."""
        labels: dict[str, str] = {}
        for line in filter(None, map(str.strip, self.cleaned_data["labels"].splitlines())):
            name, equals, value = line.partition("=")
            if not equals or not name.strip():
                raise forms.ValidationError(f"{line!r} is not in the form name=value.")
            labels[name.strip()] = value.strip()
        return labels

    def patch(self) -> dict[str, Any]:
        """Return only the changed values, by the names of the node's columns; `gpu_reserves` by UUID."""
        patch: dict[str, Any] = {}
        reserves: dict[str, int | None] = {}
        for name in self.changed_data:
            value = self.cleaned_data[name]
            if name.startswith(_RESERVE):
                reserves[name.removeprefix(_RESERVE)] = _bytes(value)
            elif name == "memory_reserve_gib":
                patch["memory_reserve_bytes"] = _bytes(value)
            else:
                patch[name] = value
        return patch | ({"gpu_reserves": reserves} if reserves else {})


_IMAGES = ("default_image", "default_image_digest", "default_llama_image", "default_llama_image_digest")


def _with_reserve(node: Node) -> tuple[Gpu, ...]:
    """Return the GPUs with memory of their own; an absent one only while it has a reserve."""
    known = queries.capabilities(node)
    if known is not None and known.memory_model is MemoryModel.UNIFIED:
        return ()
    return tuple(
        gpu for gpu in node.gpus.all() if not gpu.shares_host_memory and (gpu.present or gpu.reserve_bytes is not None)
    )


def _initial(node: Node) -> dict[str, Any]:
    plain = {
        name: getattr(node, name) for name in ("display_name", "address", "port", "max_concurrent_starts", *_IMAGES)
    }
    return {
        **plain,
        "memory_reserve_gib": _in_gib(node.memory_reserve_bytes),
        "labels": "\n".join(f"{name}={value}" for name, value in sorted(node.labels.items())),
        **{_RESERVE + gpu.uuid: _in_gib(gpu.reserve_bytes) for gpu in node.gpus.all()},
    }


def _in_gib(value: int | None) -> Decimal | None:
    return None if value is None else round(Decimal(value) / GIB, 2)


def _bytes(value: Decimal | None) -> int | None:
    return None if value is None else int(value * GIB)
