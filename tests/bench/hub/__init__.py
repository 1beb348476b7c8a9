"""A hub on this machine: repositories, gated ones too, with large files on another origin behind signed addresses."""

from tests.bench.hub.server import Hub, Repository

__all__ = ["Hub", "Repository"]
