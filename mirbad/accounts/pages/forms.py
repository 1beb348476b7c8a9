"""The form of a new admin token."""

from datetime import datetime, timedelta

from django import forms

from mirbad.kernel import clock
from mirbad.kernel.roles import OPERATOR, OWNER, VIEWER

_ROLES = (
    (VIEWER, "viewer: reads everything, changes nothing"),
    (OPERATOR, "operator: nodes, models, operations, API keys"),
    (OWNER, "owner: all of it, people and tokens too"),
)
_LIFETIMES = (("7", "7 days"), ("30", "30 days"), ("90", "90 days"), ("365", "a year"), ("", "until it is revoked"))


class TokenForm(forms.Form):
    """Name, role and end of a token for scripts."""

    name = forms.CharField(label="Name", max_length=100, help_text="Which script or person uses it.")
    role = forms.ChoiceField(label="Role", choices=_ROLES, initial=VIEWER, help_text="The least that is enough.")
    lifetime_days = forms.ChoiceField(label="Lifetime", choices=_LIFETIMES, initial="90", required=False)

    def expires_at(self) -> datetime | None:
        """The moment at which the token ends, None for never."""
        days = self.cleaned_data["lifetime_days"]
        return clock.now() + timedelta(days=int(days)) if days else None
