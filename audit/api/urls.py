"""Routes of `/api` in this app."""

from django.urls import path

from audit.api.views import AuditLines

urlpatterns = [path("audit", AuditLines.as_view(), name="api-audit")]
