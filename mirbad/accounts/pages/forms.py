"""The form of a new admin token."""

from datetime import datetime, timedelta

from django import forms

from mirbad.kernel import clock
from mirbad.kernel.roles import OPERATOR, OWNER, VIEWER

_ROLES = (
    (VIEWER, "viewer: read everything"),
    (OPERATOR, "operator: manage nodes, models, operations and API keys"),
    (OWNER, "owner: everything, including people and tokens"),
)
_LIFETIMES = (("7", "7 days"), ("30", "30 days"), ("90", "90 days"), ("365", "a year"), ("", "never"))


class TokenForm(forms.Form):
    """Name, role and expiry of a token for scripts."""

    name = forms.CharField(label="Name", max_length=100, help_text="The script or person that uses it.")
    role = forms.ChoiceField(
        label="Role", choices=_ROLES, initial=VIEWER, help_text="The lowest role that is sufficient."
    )
    lifetime_days = forms.ChoiceField(label="Lifetime", choices=_LIFETIMES, initial="90", required=False)

    def expires_at(self) -> datetime | None:
        """The time at which the token expires, None for never."""
        days = self.cleaned_data["lifetime_days"]
        return clock.now() + timedelta(days=int(days)) if days else None
