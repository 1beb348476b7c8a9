"""Django's application of the support pages, with our site."""

from django.contrib.admin.apps import AdminConfig


class SupportConfig(AdminConfig):
    """The support pages at ``/admin``."""

    default_site = "mirbad.accounts.site.SupportSite"
