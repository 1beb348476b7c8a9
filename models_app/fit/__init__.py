"""Estimates of the memory that a model takes of a machine. Pure: facts in, bytes and their reasons out."""

from models_app.fit.estimate import Estimate, MemoryComponent, estimate
from models_app.fit.serve import ServePlan, serve_plan
from models_app.fit.shape import CacheGroup, Input, ModelShape, of_folder

__all__ = [
    "CacheGroup",
    "Estimate",
    "Input",
    "MemoryComponent",
    "ModelShape",
    "ServePlan",
    "estimate",
    "of_folder",
    "serve_plan",
]
