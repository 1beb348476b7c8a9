"""Routes of `/api` in this app."""

from django.urls import path

from mirbad.api import converters
from nodes.api import telemetry, views, witnesses

converters.register()

urlpatterns = [
    path("nodes", views.Nodes.as_view(), name="api-nodes"),
    path("nodes/join-tokens", views.JoinTokens.as_view(), name="api-join-tokens"),
    path("nodes/<name:node_id>/join-tokens", views.NodeJoinTokens.as_view(), name="api-node-join-tokens"),
    path("nodes/<name:node_id>/approve", views.Approve.as_view(), name="api-node-approve"),
    path("nodes/<name:node_id>/reject", views.Reject.as_view(), name="api-node-reject"),
    path("nodes/<name:node_id>/undrain", views.Undrain.as_view(), name="api-node-undrain"),
    path("nodes/<name:node_id>/gpus", telemetry.NodeGpus.as_view(), name="api-node-gpus"),
    path("nodes/<name:node_id>/telemetry", telemetry.NodeTelemetryView.as_view(), name="api-node-telemetry"),
    path("fencing", views.Fencing.as_view(), name="api-fencing"),
    path("audit/witnesses", witnesses.Witnesses.as_view(), name="api-audit-witnesses"),
    path("audit/witnesses/accept", witnesses.AcceptLog.as_view(), name="api-audit-accept-log"),
]
