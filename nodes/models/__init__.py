"""Rows of the nodes app, one module per noun."""

from nodes.models.authority import Authority, MasterIdentity
from nodes.models.lease import Lease
from nodes.models.node import Gpu, Node, NodeCondition, NodeWitness
from nodes.models.pin import NodePin, RevokedKey
from nodes.models.rotation import CaRotation, CaRotationNode
from nodes.models.telemetry import TelemetryProgress, TelemetrySample
from nodes.models.token import JoinToken, TokenAttempt

__all__ = [
    "Authority",
    "CaRotation",
    "CaRotationNode",
    "Gpu",
    "JoinToken",
    "Lease",
    "MasterIdentity",
    "Node",
    "NodeCondition",
    "NodePin",
    "NodeWitness",
    "RevokedKey",
    "TelemetryProgress",
    "TelemetrySample",
    "TokenAttempt",
]
