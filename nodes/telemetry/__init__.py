"""Measurements of nodes: now, and over time."""

from nodes.telemetry.now import NodeTelemetry, latest

__all__ = ["NodeTelemetry", "latest"]
