"""Pages of the models app. ``-`` is not a valid model id, so no route of ours hides a model."""

from django.urls import path

from models_app.pages.views import catalog, editor, folders, keys, models, playground, replicas, usage

app_name = "models"
urlpatterns = [
    path("models", models.index, name="list"),
    path("models/-/new", editor.new, name="new"),
    path("models/-/node-fields", editor.node_fields, name="node-fields"),
    path("models/-/fit", editor.fit, name="fit"),
    path("models/-/node-cells", models.node_cells, name="node-cells"),
    path("models/-/of-node/<str:node_id>", models.of_node, name="of-node"),
    path("models/<str:model_id>", models.detail, name="detail"),
    path("models/<str:model_id>/edit", editor.edit, name="edit"),
    path("models/<str:model_id>/delete", models.delete, name="delete"),
    path("models/<str:model_id>/log", models.log, name="log"),
    path("models/<str:model_id>/replicas/add", replicas.add, name="replica-add"),
    path("models/<str:model_id>/replicas/<uuid:replica>/remove", replicas.remove, name="replica-remove"),
    path("playground", playground.page, name="playground"),
    path("playground/stream", playground.stream, name="playground-stream"),
    path("folders", folders.index, name="folders"),
    path("folders/<str:node_id>/<str:folder>/delete", folders.delete, name="folder-delete"),
    path("catalog", catalog.index, name="catalog"),
    path("catalog/<str:entry_id>/model", catalog.make_model, name="catalog-model"),
    path("keys", keys.index, name="keys"),
    path("keys/new", keys.create, name="key-new"),
    path("keys/<int:key_id>/edit", keys.change, name="key-edit"),
    path("keys/<int:key_id>/rotate", keys.rotate, name="key-rotate"),
    path("usage", usage.page, name="usage"),
    path("keys/<int:key_id>/revoke", keys.revoke, name="key-revoke"),
]
