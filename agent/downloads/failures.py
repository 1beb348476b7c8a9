"""Failures of downloads: final ones, and those that a retry may cure."""


class DownloadFailed(Exception):
    """A final failure; `code` is for programs, the text is a sentence with the next step."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class RetryableFailure(Exception):
    """A try failed and the next may succeed. `pause_seconds` is the pause that `host` asked for, None without one."""

    def __init__(self, reason: str, pause_seconds: float | None = None, host: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.pause_seconds = pause_seconds
        self.host = host
