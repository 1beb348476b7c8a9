"""Models from a hub into folders of the models root: resumed, verified, and there all at once."""

from agent.downloads.manager import Downloads

__all__ = ["Downloads"]
