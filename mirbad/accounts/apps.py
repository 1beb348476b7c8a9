"""Django application of the accounts."""

from django.apps import AppConfig


class AccountsConfig(AppConfig):
    """People and admin API tokens."""

    name = "mirbad.accounts"
    verbose_name = "Accounts"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks."""
        from mirbad import checks  # noqa: F401  importing registers them
