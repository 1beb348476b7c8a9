"""Pages of the jobs app, and the actions on models that are operations."""

from django.urls import path

from jobs.pages import ca, downloads, fencing, images, moves, nodes, replicas, views

app_name = "jobs"
urlpatterns = [
    path("fencing/-/banner", fencing.banner, name="fencing-banner"),
    path("fencing/takeover", fencing.take_over, name="takeover"),
    path("fencing/takeover/<slug:node_id>", fencing.resume, name="takeover-continue"),
    path("nodes/-/revoke/<slug:node_id>", nodes.revoke, name="node-revoke"),
    path("nodes/-/drain/<slug:node_id>", nodes.drain, name="node-drain"),
    path("nodes/-/rotate/<slug:node_id>", nodes.rotate, name="node-rotate"),
    path("nodes/-/images/<slug:node_id>", images.of_node, name="node-images"),
    path("nodes/-/images/<slug:node_id>/pull", images.pull, name="node-image-pull"),
    path("nodes/-/readmit/<slug:node_id>", nodes.readmit, name="node-readmit"),
    path("operations/-/of-node/<slug:node_id>", nodes.of_node, name="of-node"),
    path("operations/-/history-of-node/<slug:node_id>", nodes.history, name="node-history"),
    path("operations/-/activity", views.activity, name="activity"),
    path("operations/-/node-cells", nodes.node_cells, name="node-cells"),
    path("pki/ca", ca.page, name="ca"),
    path("pki/ca/card", ca.card, name="ca-card"),
    path("pki/ca/-/of/<slug:node_id>", ca.of_node, name="ca-of-node"),
    path("pki/ca/start", ca.start, name="ca-start"),
    path("pki/ca/rollback", ca.roll_back, name="ca-rollback"),
    path("pki/ca/close", ca.close, name="ca-close"),
    path("pki/ca/replace", ca.replace, name="ca-replace"),
    path("downloads", downloads.index, name="downloads"),
    path("downloads/new", downloads.new, name="download-new"),
    path("downloads/-/files", downloads.files, name="download-files"),
    path("downloads/<str:operation_id>/forget", downloads.forget, name="download-forget"),
    path("operations", views.index, name="list"),
    path("operations/-/of-model/<str:model_id>", views.of_model, name="of-model"),
    path("operations/-/timeline/<str:model_id>", views.timeline, name="timeline"),
    path("operations/<str:operation_id>", views.detail, name="detail"),
    path("operations/<str:operation_id>/cancel", views.cancel, name="cancel"),
    path("models/<str:model_id>/move", moves.move, name="model-move"),
    path("models/<str:model_id>/move/-/state", moves.state, name="model-move-state"),
    path("models/<str:model_id>/move/cancel", moves.cancel, name="model-move-cancel"),
    path("models/<str:model_id>/move/force-commit", moves.force_commit, name="model-move-force"),
    path("models/<str:model_id>/start-anyway", moves.start_anyway, name="model-start-anyway"),
    path("models/<str:model_id>/unplace", moves.unplace, name="model-unplace"),
    path("models/<str:model_id>/start", views.start, name="model-start"),
    path("models/<str:model_id>/stop", views.stop, name="model-stop"),
    path("models/<str:model_id>/restart", views.restart, name="model-restart"),
    path("models/<str:model_id>/replicas/<uuid:replica>/start", replicas.start, name="replica-start"),
    path("models/<str:model_id>/replicas/<uuid:replica>/stop", replicas.stop, name="replica-stop"),
]
