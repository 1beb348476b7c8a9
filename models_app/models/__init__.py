"""Rows of the models app, one module per noun."""

from models_app.models.definition import ModelDefinition, ModelSource
from models_app.models.engine_exit import EngineExit
from models_app.models.hold import Hold
from models_app.models.intent import OrphanInstance, RunningIntent
from models_app.models.key import ApiKey
from models_app.models.placement import Placement
from models_app.models.routing import RoutingVersion
from models_app.models.shape import KnownShape
from models_app.models.usage import UsageDay
from models_app.models.window import MaintenanceWindow

__all__ = [
    "ApiKey",
    "EngineExit",
    "Hold",
    "KnownShape",
    "MaintenanceWindow",
    "ModelDefinition",
    "ModelSource",
    "OrphanInstance",
    "Placement",
    "RoutingVersion",
    "RunningIntent",
    "UsageDay",
]
