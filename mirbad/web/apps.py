"""Django application of the shared page parts (templates, template tags)."""

from django.apps import AppConfig


class WebConfig(AppConfig):
    """The shell of the pages."""

    name = "mirbad.web"
    label = "web"
