"""Django application of the models."""

from django.apps import AppConfig


class ModelsAppConfig(AppConfig):
    """Models and their placements."""

    name = "models_app"
    verbose_name = "Models"
    default_auto_field = "django.db.models.BigAutoField"
