"""Forms of the nodes pages. They read what a person typed; the rules live in `nodes`."""

from datetime import timedelta
from typing import Any

from django import forms

from nodes.models import Node

LIFETIMES = (("10", "10 minutes"), ("30", "30 minutes"), ("60", "1 hour"), ("240", "4 hours"), ("1440", "24 hours"))
GIB = 1024**3


class AddNodeForm(forms.Form):
    """What a join command needs."""

    node_id = forms.SlugField(
        label="Node id",
        max_length=40,
        help_text="1 to 40 lower-case letters, digits and hyphens. It stays with the machine.",
        widget=forms.TextInput(attrs={"autocomplete": "off", "autocapitalize": "none", "spellcheck": "false"}),
    )
    display_name = forms.CharField(
        label="Display name", max_length=100, required=False, help_text="Optional. What pages call the machine."
    )
    ttl_minutes = forms.ChoiceField(label="The token is good for", choices=LIFETIMES, initial="60")

    @property
    def ttl(self) -> timedelta:
        """The lifetime chosen."""
        return timedelta(minutes=int(self.cleaned_data["ttl_minutes"]))


class RekeyForm(forms.Form):
    """How long a rekey token is good for."""

    ttl_minutes = forms.ChoiceField(label="The token is good for", choices=LIFETIMES, initial="60")

    @property
    def ttl(self) -> timedelta:
        """The lifetime chosen."""
        return timedelta(minutes=int(self.cleaned_data["ttl_minutes"]))


class NodeSettingsForm(forms.Form):
    """The settings of one node; empty leaves a limit to the agent."""

    display_name = forms.CharField(label="Display name", max_length=100, required=False)
    address = forms.CharField(label="Agent address", max_length=255, help_text="Where the master dials the agent.")
    port = forms.IntegerField(label="Agent port", min_value=1, max_value=65535)
    memory_reserve_gib = forms.DecimalField(
        label="Memory reserve, GiB",
        required=False,
        min_value=0,
        max_digits=8,
        decimal_places=2,
        help_text="Host memory that engines never get. Empty: the agent's own default.",
    )
    max_concurrent_starts = forms.IntegerField(
        label="Concurrent starts", required=False, min_value=1, max_value=32, help_text="Empty: the agent decides."
    )
    labels = forms.CharField(
        label="Labels",
        required=False,
        help_text="One name=value a line.",
        widget=forms.Textarea(attrs={"rows": 3, "spellcheck": "false"}),
    )
    default_image = forms.CharField(
        label="Default vLLM image",
        max_length=255,
        required=False,
        help_text="For models without an image of their own.",
    )
    default_image_digest = forms.RegexField(
        label="Its digest",
        regex=r"^sha256:[0-9a-f]{64}$",
        required=False,
        help_text="sha256: and 64 hex digits. The agent pulls exactly this.",
        error_messages={"invalid": "Give sha256: and 64 lower-case hex digits."},
    )

    @classmethod
    def of(cls, node: Node, data: Any = None) -> "NodeSettingsForm":
        """The form with what the node has now."""
        reserve = node.memory_reserve_bytes
        return cls(
            data,
            initial={
                "display_name": node.display_name,
                "address": node.address,
                "port": node.port,
                "memory_reserve_gib": None if reserve is None else round(reserve / GIB, 2),
                "max_concurrent_starts": node.max_concurrent_starts,
                "labels": "\n".join(f"{name}={value}" for name, value in sorted(node.labels.items())),
                "default_image": node.default_image,
                "default_image_digest": node.default_image_digest,
            },
        )

    def clean_labels(self) -> dict[str, str]:
        """``name=value`` lines as a dict."""
        labels: dict[str, str] = {}
        for line in filter(None, map(str.strip, self.cleaned_data["labels"].splitlines())):
            name, equals, value = line.partition("=")
            if not equals or not name.strip():
                raise forms.ValidationError(f"{line!r} is not name=value.")
            labels[name.strip()] = value.strip()
        return labels

    def patch(self) -> dict[str, Any]:
        """Only what was changed, by the names of the node's columns."""
        values = dict(self.cleaned_data)
        reserve = values.pop("memory_reserve_gib")
        values["memory_reserve_bytes"] = None if reserve is None else int(reserve * GIB)
        changed = {"memory_reserve_bytes" if name == "memory_reserve_gib" else name for name in self.changed_data}
        return {name: value for name, value in values.items() if name in changed}
