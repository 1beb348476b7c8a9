"""Pages of the models app. ``-`` is no model id, so nothing of ours hides a model."""

from django.urls import path

from models_app.pages import artifacts, key_views, placing, playground, replicas, usage, views

app_name = "models"
urlpatterns = [
    path("models", views.index, name="list"),
    path("models/-/new", views.new, name="new"),
    path("models/-/node-fields", views.node_fields, name="node-fields"),
    path("models/-/fit", placing.fit, name="fit"),
    path("models/-/node-cells", views.node_cells, name="node-cells"),
    path("models/-/of-node/<str:node_id>", views.of_node, name="of-node"),
    path("models/<str:model_id>", views.detail, name="detail"),
    path("models/<str:model_id>/edit", views.edit, name="edit"),
    path("models/<str:model_id>/delete", views.delete, name="delete"),
    path("models/<str:model_id>/log", views.log, name="log"),
    path("models/<str:model_id>/replicas/add", replicas.add, name="replica-add"),
    path("models/<str:model_id>/replicas/<uuid:replica>/remove", replicas.remove, name="replica-remove"),
    path("playground", playground.page, name="playground"),
    path("playground/stream", playground.stream, name="playground-stream"),
    path("folders", artifacts.folders_page, name="folders"),
    path("folders/<str:node_id>/<str:folder>/delete", artifacts.delete_folder, name="folder-delete"),
    path("catalog", artifacts.catalog_page, name="catalog"),
    path("catalog/<str:entry_id>/model", artifacts.make_model, name="catalog-model"),
    path("keys", key_views.index, name="keys"),
    path("keys/new", key_views.create, name="key-new"),
    path("keys/<int:key_id>/edit", key_views.change, name="key-edit"),
    path("keys/<int:key_id>/rotate", key_views.rotate, name="key-rotate"),
    path("usage", usage.page, name="usage"),
    path("keys/<int:key_id>/revoke", key_views.revoke, name="key-revoke"),
]
