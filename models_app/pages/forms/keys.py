"""The form of an API key."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django import forms

from mirbad.kernel import clock
from models_app import keys

LIFETIMES = (
    ("", "does not expire"),
    ("1", "1 day"),
    ("7", "7 days"),
    ("30", "30 days"),
    ("90", "90 days"),
    ("365", "1 year"),
)


class KeyForm(forms.Form):
    """A new key of ``/v1``, or the changeable settings of one."""

    name = forms.CharField(label="Name", max_length=100, help_text="The person or program that uses it.")
    allowed_models = forms.MultipleChoiceField(
        label="Models",
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text="None selected = all models, including future ones.",
    )
    lifetime_days = forms.ChoiceField(label="Lifetime", choices=LIFETIMES, required=False)
    requests_per_minute = forms.IntegerField(
        label="Requests per minute",
        min_value=1,
        max_value=keys.LIMIT_HIGHEST,
        required=False,
        help_text="Leave empty for no limit.",
    )
    tokens_per_minute = forms.IntegerField(
        label="Tokens per minute",
        min_value=1,
        max_value=keys.LIMIT_HIGHEST,
        required=False,
        help_text="Prompt and completion, as engines report them. Leave empty for no limit.",
    )
    max_parallel = forms.IntegerField(
        label="Concurrent requests",
        min_value=1,
        max_value=keys.LIMIT_HIGHEST,
        required=False,
        help_text="Leave empty for no limit.",
    )

    def __init__(
        self, data: Any = None, *, models: Sequence[tuple[str, str]], initial: dict[str, Any] | None = None
    ) -> None:
        super().__init__(data, initial=initial)
        self.fields["allowed_models"].choices = models  # type: ignore[attr-defined]

    def expires_at(self) -> Any:
        """Return the expiry of the key, None for never."""
        days = self.cleaned_data["lifetime_days"]
        return clock.now() + timedelta(days=int(days)) if days else None

    def limits(self) -> keys.Limits:
        """Return the limits as typed."""
        return keys.Limits(**{name: self.cleaned_data[name] for name in keys.LIMIT_NAMES})
