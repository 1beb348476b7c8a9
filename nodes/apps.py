"""Django application of the nodes."""

from django.apps import AppConfig


class NodesConfig(AppConfig):
    """Machines and their identity."""

    name = "nodes"
    verbose_name = "Nodes"
    default_auto_field = "django.db.models.BigAutoField"
