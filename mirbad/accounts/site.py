"""The site of the support pages at ``/admin``."""

from typing import Any

from django.contrib.admin import AdminSite
from django.db import transaction
from django.http import HttpRequest
from django.template.response import TemplateResponse

from audit import log as audit
from mirbad.accounts import actors


class SupportSite(AdminSite):
    """Django's site, in which a change of one's own password is an audit line."""

    def password_change(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> TemplateResponse:
        """Change the password of the person and record it, or neither."""
        person: Any = request.user
        before, who = person.password, actors.of(request)
        with transaction.atomic():
            response = super().password_change(request, extra_context)
            if person.password != before:
                audit.record("person", who, target=person.get_username(), detail="changed the own password")
        return response
