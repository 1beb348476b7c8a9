"""How downloads fail: for good, or in a way that another try may cure."""


class DownloadFailed(Exception):
    """It ends here; `code` is for programs, the text is a sentence that says what to do."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class TryAgain(Exception):
    """A try failed and the next may not; `pause_seconds` is what the other side asked for, None when it did not."""

    def __init__(self, reason: str, pause_seconds: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.pause_seconds = pause_seconds
