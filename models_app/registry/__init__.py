"""Model definitions: the input (`inputs`), its writer (`writes`), and the launch spec for a node (`specs`)."""

from models_app.registry.allowances import of_fleet, refused_of
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
    "of_fleet",
    "parse",
    "refused_of",
    "restart_needed",
    "update",
]
