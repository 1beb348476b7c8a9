"""Routes of `/api` in this app: all that one of its methods needs from operations."""

from django.urls import path

from jobs.api import (
    backup_destinations,
    backup_imports,
    backups,
    downloads,
    fencing,
    images,
    moves,
    nodes,
    pki,
    replicas,
    views,
)
from mirbad.api import converters

converters.register()

urlpatterns = [
    path("status", views.StatusView.as_view(), name="api-status"),
    path("models/<name:model_id>/start", views.StartModel.as_view(), name="api-model-start"),
    path("models/<name:model_id>/stop", views.StopModel.as_view(), name="api-model-stop"),
    path("models/<name:model_id>/restart", views.RestartModel.as_view(), name="api-model-restart"),
    path("models/<name:model_id>/move", moves.MoveView.as_view(), name="api-model-move"),
    path("models/<name:model_id>/move/cancel", moves.CancelMove.as_view(), name="api-model-move-cancel"),
    path("models/<name:model_id>/move/force-commit", moves.ForceCommitMove.as_view(), name="api-model-move-force"),
    path("models/<name:model_id>/unplace", moves.UnplaceModel.as_view(), name="api-model-unplace"),
    path(
        "models/<name:model_id>/replicas/<uuid:replica>/start",
        replicas.StartReplica.as_view(),
        name="api-replica-start",
    ),
    path(
        "models/<name:model_id>/replicas/<uuid:replica>/stop", replicas.StopReplica.as_view(), name="api-replica-stop"
    ),
    path(
        "models/<name:model_id>/replicas/<uuid:replica>/restart",
        replicas.RestartReplica.as_view(),
        name="api-replica-restart",
    ),
    path("models/<name:model_id>/logs", views.ModelLogs.as_view(), name="api-model-logs"),
    path("nodes/<name:node_id>", nodes.NodeView.as_view(), name="api-node"),
    path("nodes/<name:node_id>/drain", nodes.DrainNode.as_view(), name="api-node-drain"),
    path("nodes/<name:node_id>/rotate-cert", nodes.RotateCertificate.as_view(), name="api-node-rotate-cert"),
    path("nodes/<name:node_id>/readmit", nodes.ReadmitNode.as_view(), name="api-node-readmit"),
    path("nodes/<name:node_id>/images", images.NodeImagesView.as_view(), name="api-node-images"),
    path("nodes/<name:node_id>/images/pull", images.PullImage.as_view(), name="api-node-image-pull"),
    path("fencing/takeover", fencing.TakeOver.as_view(), name="api-fencing-takeover"),
    path("fencing/stand-down", fencing.StandDown.as_view(), name="api-fencing-stand-down"),
    path("fencing/takeover/continue", fencing.ContinueTakeover.as_view(), name="api-fencing-continue"),
    path("pki/ca-rotation", pki.CaRotationView.as_view(), name="api-ca-rotation"),
    path("pki/ca-replacement", pki.CaReplacementView.as_view(), name="api-ca-replacement"),
    path("backups/imports", backup_imports.BackupImportsView.as_view(), name="api-backup-imports"),
    path("backups/imports/<str:upload_id>", backup_imports.OneBackupImportView.as_view(), name="api-backup-import"),
    path(
        "backups/imports/<str:upload_id>/preview",
        backup_imports.BackupImportPreview.as_view(),
        name="api-backup-import-preview",
    ),
    path(
        "backups/imports/<str:upload_id>/confirm",
        backup_imports.BackupImportConfirmation.as_view(),
        name="api-backup-import-confirm",
    ),
    path("downloads", downloads.DownloadsView.as_view(), name="api-downloads"),
    path("downloads/inspect", downloads.DownloadInspectionView.as_view(), name="api-downloads-inspect"),
    path("downloads/<name:operation_id>", downloads.OneDownloadView.as_view(), name="api-download"),
    path("backups", backups.BackupsView.as_view(), name="api-backups"),
    path("backups/<row:row_id>", backups.BackupView.as_view(), name="api-backup"),
    path("backups/<row:row_id>/download", backups.DownloadBackup.as_view(), name="api-backup-download"),
    path("backups/destinations", backup_destinations.DestinationsView.as_view(), name="api-backup-destinations"),
    path(
        "backups/destinations/<row:row_id>",
        backup_destinations.DestinationView.as_view(),
        name="api-backup-destination",
    ),
    path(
        "backups/destinations/<row:row_id>/try",
        backup_destinations.TryDestination.as_view(),
        name="api-backup-destination-try",
    ),
    path("operations", views.OperationsView.as_view(), name="api-operations"),
    path("operations/<name:operation_id>", views.OneOperationView.as_view(), name="api-operation"),
]
