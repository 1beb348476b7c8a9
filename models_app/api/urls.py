"""Routes of `/api` in this app. Start, stop, restart and logs of a model are in `jobs`."""

from django.urls import path

from mirbad.api import converters
from models_app.api.artifacts import CatalogView, FoldersView, FolderView, GgufView
from models_app.api.fit import NodeFitView, PlacementPlanView, PlacementsView
from models_app.api.keys import KeyRotationView, KeysView, KeyView
from models_app.api.replicas import ReplicasView, ReplicaView
from models_app.api.usage import UsageView
from models_app.api.views import ModelsView, ModelView

converters.register()

urlpatterns = [
    path("models", ModelsView.as_view(), name="api-models"),
    path("models/<name:model_id>", ModelView.as_view(), name="api-model"),
    path("models/<name:model_id>/replicas", ReplicasView.as_view(), name="api-model-replicas"),
    path("models/<name:model_id>/replicas/<uuid:replica>", ReplicaView.as_view(), name="api-model-replica"),
    path("nodes/<name:node_id>/fit", NodeFitView.as_view(), name="api-node-fit"),
    path("placements", PlacementsView.as_view(), name="api-placements"),
    path("placements/plan", PlacementPlanView.as_view(), name="api-placements-plan"),
    path("model-folders", FoldersView.as_view(), name="api-model-folders"),
    path("model-folders/<folder:folder>", FolderView.as_view(), name="api-model-folder"),
    path("model-folders/<folder:folder>/gguf", GgufView.as_view(), name="api-model-folder-gguf"),
    path("catalog", CatalogView.as_view(), name="api-catalog"),
    path("keys", KeysView.as_view(), name="api-keys"),
    path("keys/<row:row_id>", KeyView.as_view(), name="api-key"),
    path("keys/<row:row_id>/rotate", KeyRotationView.as_view(), name="api-key-rotate"),
    path("usage", UsageView.as_view(), name="api-usage"),
]
