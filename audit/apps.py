"""Django application of the audit log."""

from django.apps import AppConfig


class AuditConfig(AppConfig):
    """The audit log."""

    name = "audit"
    verbose_name = "Audit"
    default_auto_field = "django.db.models.BigAutoField"
