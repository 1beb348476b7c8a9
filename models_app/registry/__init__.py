"""Model definitions: what may be sent (`inputs`), who writes it (`writes`), what a node is asked to run (`specs`)."""

from models_app.registry.inputs import ModelInput, PlacementInput, SourceInput, parse
from models_app.registry.specs import config_hash, image_of, launch_spec, restart_needed
from models_app.registry.writes import create, delete, update

__all__ = [
    "ModelInput",
    "PlacementInput",
    "SourceInput",
    "config_hash",
    "create",
    "delete",
    "image_of",
    "launch_spec",
    "parse",
    "restart_needed",
    "update",
]
