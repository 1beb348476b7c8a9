"""Routes of `/api` in this app: all that one of its methods needs from operations."""

from django.urls import path

from jobs.api import downloads, fencing, images, moves, nodes, pki, replicas, views
from mirbad.api import converters

converters.register()

urlpatterns = [
    path("status", views.Status.as_view(), name="api-status"),
    path("models/<name:model_id>/start", views.Start.as_view(), name="api-model-start"),
    path("models/<name:model_id>/stop", views.Stop.as_view(), name="api-model-stop"),
    path("models/<name:model_id>/restart", views.Restart.as_view(), name="api-model-restart"),
    path("models/<name:model_id>/move", moves.Move.as_view(), name="api-model-move"),
    path("models/<name:model_id>/move/cancel", moves.CancelMove.as_view(), name="api-model-move-cancel"),
    path("models/<name:model_id>/move/force-commit", moves.ForceCommit.as_view(), name="api-model-move-force"),
    path("models/<name:model_id>/unplace", moves.Unplace.as_view(), name="api-model-unplace"),
    path("models/<name:model_id>/replicas/<uuid:replica>/start", replicas.Start.as_view(), name="api-replica-start"),
    path("models/<name:model_id>/replicas/<uuid:replica>/stop", replicas.Stop.as_view(), name="api-replica-stop"),
    path(
        "models/<name:model_id>/replicas/<uuid:replica>/restart", replicas.Restart.as_view(), name="api-replica-restart"
    ),
    path("models/<name:model_id>/logs", views.Logs.as_view(), name="api-model-logs"),
    path("nodes/<name:node_id>", nodes.OneNode.as_view(), name="api-node"),
    path("nodes/<name:node_id>/drain", nodes.Drain.as_view(), name="api-node-drain"),
    path("nodes/<name:node_id>/rotate-cert", nodes.RotateCertificate.as_view(), name="api-node-rotate-cert"),
    path("nodes/<name:node_id>/readmit", nodes.Readmit.as_view(), name="api-node-readmit"),
    path("nodes/<name:node_id>/images", images.NodeImages.as_view(), name="api-node-images"),
    path("nodes/<name:node_id>/images/pull", images.ImagePull.as_view(), name="api-node-image-pull"),
    path("fencing/takeover", fencing.Takeover.as_view(), name="api-fencing-takeover"),
    path("fencing/takeover/continue", fencing.Continuation.as_view(), name="api-fencing-continue"),
    path("pki/ca-rotation", pki.CaRotation.as_view(), name="api-ca-rotation"),
    path("pki/ca-replacement", pki.CaReplacement.as_view(), name="api-ca-replacement"),
    path("downloads", downloads.Downloads.as_view(), name="api-downloads"),
    path("downloads/inspect", downloads.Inspection.as_view(), name="api-downloads-inspect"),
    path("downloads/<name:operation_id>", downloads.Download.as_view(), name="api-download"),
    path("operations", views.Operations.as_view(), name="api-operations"),
    path("operations/<name:operation_id>", views.OneOperation.as_view(), name="api-operation"),
]
