"""Django application of the jobs."""

from django.apps import AppConfig


class JobsConfig(AppConfig):
    """Durable operations."""

    name = "jobs"
    verbose_name = "Operations"
    default_auto_field = "django.db.models.BigAutoField"
