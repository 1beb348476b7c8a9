"""Routes of `/api` in this app."""

from django.urls import path

from audit.api.views import AuditCheckpoint, AuditLines, AuditProof

urlpatterns = [
    path("audit", AuditLines.as_view(), name="api-audit"),
    path("audit/checkpoint", AuditCheckpoint.as_view(), name="api-audit-checkpoint"),
    path("audit/proof", AuditProof.as_view(), name="api-audit-proof"),
]
