"""Mirbad: turns the GPU machines that people own into one LLM service."""

__version__ = "0.1.0"
