"""Django application of the operator's commands (`manage.py status`, `snapshot`, `admin-password`, `api-key`)."""

from django.apps import AppConfig


class UpConfig(AppConfig):
    """Commands for an operator's shell."""

    name = "mirbad.up"
    label = "up"
