"""Forms of the nodes pages. They read what a person typed; the rules live in `nodes`."""

from datetime import timedelta

from django import forms

LIFETIMES = (("10", "10 minutes"), ("30", "30 minutes"), ("60", "1 hour"), ("240", "4 hours"), ("1440", "24 hours"))


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
