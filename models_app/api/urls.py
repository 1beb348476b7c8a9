"""Routes of `/api` in this app. Start, stop, restart and logs of a model are in `jobs`."""

from django.urls import path

from mirbad.api import converters
from models_app.api.artifacts import Catalog, Folder, Folders, Gguf
from models_app.api.fit import NodeFit, PlacementPlan, Placements
from models_app.api.keys import Key, KeyRotation, Keys
from models_app.api.replicas import Replica, Replicas
from models_app.api.usage import Usage
from models_app.api.views import Model, Models

converters.register()

urlpatterns = [
    path("models", Models.as_view(), name="api-models"),
    path("models/<name:model_id>", Model.as_view(), name="api-model"),
    path("models/<name:model_id>/replicas", Replicas.as_view(), name="api-model-replicas"),
    path("models/<name:model_id>/replicas/<uuid:replica>", Replica.as_view(), name="api-model-replica"),
    path("nodes/<name:node_id>/fit", NodeFit.as_view(), name="api-node-fit"),
    path("placements", Placements.as_view(), name="api-placements"),
    path("placements/plan", PlacementPlan.as_view(), name="api-placements-plan"),
    path("model-folders", Folders.as_view(), name="api-model-folders"),
    path("model-folders/<folder:folder>", Folder.as_view(), name="api-model-folder"),
    path("model-folders/<folder:folder>/gguf", Gguf.as_view(), name="api-model-folder-gguf"),
    path("catalog", Catalog.as_view(), name="api-catalog"),
    path("keys", Keys.as_view(), name="api-keys"),
    path("keys/<row:row_id>", Key.as_view(), name="api-key"),
    path("keys/<row:row_id>/rotate", KeyRotation.as_view(), name="api-key-rotate"),
    path("usage", Usage.as_view(), name="api-usage"),
]
