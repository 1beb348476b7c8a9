"""Forms that create join tokens."""

from datetime import timedelta

from django import forms

LIFETIMES = (("10", "10 minutes"), ("30", "30 minutes"), ("60", "1 hour"), ("240", "4 hours"), ("1440", "24 hours"))


class AddNodeForm(forms.Form):
    """Input of a join command."""

    node_id = forms.SlugField(
        label="Node id",
        max_length=40,
        help_text="1 to 40 lower-case letters, digits and hyphens. Can't be changed later.",
        widget=forms.TextInput(attrs={"autocomplete": "off", "autocapitalize": "none", "spellcheck": "false"}),
    )
    display_name = forms.CharField(
        label="Display name", max_length=100, required=False, help_text="Optional. Shown instead of the id."
    )
    ttl_minutes = forms.ChoiceField(label="Token expires after", choices=LIFETIMES, initial="60")

    @property
    def ttl(self) -> timedelta:
        """The chosen lifetime."""
        return timedelta(minutes=int(self.cleaned_data["ttl_minutes"]))


class RekeyForm(forms.Form):
    """Input of a rekey command."""

    ttl_minutes = forms.ChoiceField(label="Token expires after", choices=LIFETIMES, initial="60")

    @property
    def ttl(self) -> timedelta:
        """The chosen lifetime."""
        return timedelta(minutes=int(self.cleaned_data["ttl_minutes"]))
