"""Django application of the models."""

from django.apps import AppConfig


class ModelsAppConfig(AppConfig):
    """Models and where they run."""

    name = "models_app"
    verbose_name = "Models"
    default_auto_field = "django.db.models.BigAutoField"
