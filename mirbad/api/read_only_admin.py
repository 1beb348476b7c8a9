"""The base of the Django admin's pages: view only, with a few safe actions."""

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.http import HttpRequest

from mirbad.kernel.roles import VIEWER, has_role

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Any]
else:  # the class takes no parameters at run time
    _ModelAdmin = admin.ModelAdmin


class ReadOnlyAdmin(_ModelAdmin):
    """Shows rows to staff with a role; nobody can add, change or delete them here: every rule is in the apps."""

    list_per_page = 50
    show_full_result_count = False

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Return whether the app is listed."""
        return has_role(request.user, VIEWER)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return whether the person has a role."""
        return has_role(request.user, VIEWER)

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False: rows are created by the apps."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False: rows are changed by the apps."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False: rows are deleted by the apps."""
        return False
