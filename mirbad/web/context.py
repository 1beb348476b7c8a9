"""Values for the shell of every page: the person, the role, the place in the navigation."""

from typing import Any

from django.http import HttpRequest

import mirbad
from mirbad.kernel import clock
from mirbad.kernel.roles import OPERATOR, OWNER, VIEWER, has_role

THEMES = ("auto", "light", "dark")

# Pages with their own place in the navigation.
_OWN_PLACE = {
    "models:playground": "models:playground",
    "models:keys": "models:keys",
    "models:key-new": "models:keys",
    "models:folders": "jobs:downloads",
    "models:catalog": "jobs:downloads",
    "jobs:downloads": "jobs:downloads",
    "jobs:download-new": "jobs:downloads",
    "nodes:witnesses-accept": "audit",
    "jobs:backups": "jobs:backups",
    "jobs:backup-new": "jobs:backups",
    "jobs:backup-destination": "jobs:backups",
    "jobs:backup-destination-new": "jobs:backups",
    "jobs:backup-import": "jobs:backups",
    "jobs:backup-import-preview": "jobs:backups",
    "jobs:backup-import-confirm": "jobs:backups",
    "jobs:ca": "nodes",
    "jobs:ca-replace": "nodes",
    "jobs:node-revoke": "nodes",
    "jobs:node-drain": "nodes",
    "jobs:stand-down": "nodes",
    "jobs:takeover": "nodes",
    "jobs:takeover-continue": "nodes",
    "jobs:backup-recovered": "nodes",
    "jobs:model-start-ask": "models",
    "jobs:model-move": "models",
    "jobs:model-unplace": "models",
}


def _here(view_name: str, app_name: str) -> str:
    return _OWN_PLACE.get(view_name, app_name or view_name)


def shell(request: HttpRequest) -> dict[str, Any]:
    """Return ``shell``: version, theme of the cookie, place in the navigation, and the person's rights."""
    user = getattr(request, "user", None)
    signed_in = bool(user and user.is_authenticated)
    theme = request.COOKIES.get("mirbad-theme", "auto")
    match = request.resolver_match
    return {
        "shell": {
            "version": mirbad.__version__,
            "now": clock.now().isoformat(),
            "theme": theme if theme in THEMES else "auto",
            "here": _here(match.view_name, match.app_name) if match else "",
            "signed_in": signed_in,
            "may_look": signed_in and has_role(request.user, VIEWER),
            "may_operate": signed_in and has_role(request.user, OPERATOR),
            "may_own": signed_in and has_role(request.user, OWNER),
        }
    }
