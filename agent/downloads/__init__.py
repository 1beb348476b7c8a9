"""Model downloads from a hub into folders of the models root: resumed, verified, and visible only when complete."""

from agent.downloads.manager import DownloadManager

__all__ = ["DownloadManager"]
