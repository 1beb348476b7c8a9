"""What a model takes of a machine, from its own shape. Pure: facts in, bytes and their reasons out."""

from models_app.fit.estimate import Estimate, Part, estimate
from models_app.fit.serve import ServePlan, serve_plan
from models_app.fit.shape import CacheGroup, Input, ModelShape, of_folder

__all__ = [
    "CacheGroup",
    "Estimate",
    "Input",
    "ModelShape",
    "Part",
    "ServePlan",
    "estimate",
    "of_folder",
    "serve_plan",
]
