"""The people of a long run: each does one thing again and again, at a pace of its own, and knows the right answer."""

import random
import re
import subprocess
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import requests
from websockets.sync.client import connect

from tests.bench.hub import Hub, Repository
from tests.e2e.fleet import Failed, Fleet
from tests.waiting import until, until_no

PASSWORD = "correct horse battery"
STEADY, TURNING = "steady", "turning"
_PAGES = (
    *("/", "/nodes", "/nodes/local", "/models", "/models/steady", "/models/turning", "/models/steady/edit"),
    *("/operations", "/downloads", "/folders", "/keys", "/usage", "/audit", "/dashboard", "/playground", "/catalog"),
    *("/pki/ca", "/tokens"),
)
_LISTS = (
    *("status", "nodes", "nodes/local", "nodes/local/gpus", "nodes/local/telemetry", "nodes/local/fit?modelId=steady"),
    *("models", "models/steady", "models/steady/logs", "model-folders", "catalog", "keys", "usage", "tokens"),
    *("operations", "downloads", "audit", "audit/checkpoint", "pki/ca-rotation", "fencing"),
)
_LARGE = 3 * 1024 * 1024
_SECONDS = 60


class Unexpected(Exception):
    """An answer that nobody expects."""


class Tally:
    """Answers by the name of what was done: those expected, with the slowest, and all others."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.expected: dict[str, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
        self.unexpected: Counter[tuple[str, str]] = Counter()

    def note(self, name: str, act: Callable[[], None]) -> None:
        """Do `act` once and count its end."""
        began = time.monotonic()
        try:
            act()
        except (Unexpected, AssertionError, OSError, ValueError, KeyError) as error:
            told = str(error)[:160] if isinstance(error, Unexpected | AssertionError) else type(error).__name__
            with self._lock:
                self.unexpected[name, told] += 1
            return
        with self._lock:
            number, worst = self.expected[name]
            self.expected[name] = number + 1, max(worst, time.monotonic() - began)


def _expect(answer: requests.Response, *statuses: int) -> requests.Response:
    if answer.status_code not in statuses:
        raise Unexpected(f"{answer.status_code} {answer.request.path_url}: {' '.join(answer.text.split())[:100]}")
    return answer


class People:
    """Everybody who uses one fleet. A session is used by one thread."""

    def __init__(self, fleet: Fleet, hub: Hub) -> None:
        self._fleet, self._hub = fleet, hub
        self._turn: Counter[str] = Counter()
        self._random = random.Random(7)
        self.tally = Tally()
        self._browser, self._client, self._tools = requests.Session(), requests.Session(), requests.Session()

    def set_up(self) -> None:
        """Have two models, one of them serving, and a signed-in browser."""
        until_no((Failed, subprocess.TimeoutExpired), lambda: self._fleet.token, 300)
        until(self._is_online, "the own node", 300, every=1.0)
        self._fleet.define_sim(STEADY, "local", "--tokens-per-second", "100")
        self._fleet.define_sim(TURNING, "local")
        self._fleet.api("POST", f"models/{STEADY}/start", {"confirm": True})
        self._fleet.wait_for_answer(STEADY, 180)
        self._log_in(self._browser)
        self._client.headers["Authorization"] = f"Bearer {self._fleet.key}"
        self._tools.headers["Authorization"] = f"Bearer {self._fleet.token}"
        url = f"{self._fleet.url}/api/audit/checkpoint"
        until(
            lambda: self._tools.get(url, timeout=_SECONDS).ok, "the first signed head of the audit log", 300, every=2.0
        )

    def _is_online(self) -> bool:
        return any(node["state"] == "Online" for node in self._fleet.api("GET", "nodes")["items"])

    def start(self, over: threading.Event) -> list[threading.Thread]:
        """Let everybody work until `over` is set."""
        work: tuple[tuple[str, float, Callable[[], None]], ...] = (
            ("chats, whole and streamed", 1.0, self._chat),
            ("chats of a client that leaves early", 11.0, self._leave),
            ("chats with a model that is started and stopped", 5.0, self._chat_turning),
            ("chats with a wrong key", 13.0, self._chat_refused),
            ("pages", 3.0, self._look),
            ("lists of the API", 2.0, self._list),
            ("scrapes of /metrics", 15.0, self._scrape),
            ("log-ins and log-outs", 31.0, self._come_and_go),
            ("log-ins with a wrong password", 61.0, self._guess),
            ("websockets of a page", 23.0, self._listen),
            ("starts and stops of a model", 29.0, self._start_and_stop),
            ("models made, changed and deleted", 53.0, self._define),
            ("keys made, rotated and revoked", 47.0, self._keys),
            ("downloads, and their folders deleted", 67.0, self._download),
        )
        threads = [threading.Thread(target=self._repeat, args=(over, *one), daemon=True) for one in work]
        for thread in threads:
            thread.start()
        return threads

    def _repeat(self, over: threading.Event, name: str, every: float, act: Callable[[], None]) -> None:
        while not over.wait(every * self._random.uniform(0.5, 1.5)):
            self.tally.note(name, act)

    def _next(self, name: str, of: tuple[str, ...]) -> str:
        self._turn[name] += 1
        return of[self._turn[name] % len(of)]

    # -- /v1 ---------------------------------------------------------------------------------------------------------

    def _ask(self, model: str, *, stream: bool, session: requests.Session | None = None) -> requests.Response:
        body = {"model": model, "stream": stream, "max_tokens": 8, "messages": [{"role": "user", "content": "Hi"}]}
        url = f"{self._fleet.url}/v1/chat/completions"
        return (session or self._client).post(url, json=body, stream=stream, timeout=_SECONDS)

    def _chat(self) -> None:
        self._turn["chat"] += 1
        if self._turn["chat"] % 2:
            answer = _expect(self._ask(STEADY, stream=False), 200).json()
            if answer["usage"]["completion_tokens"] != 8:
                raise Unexpected(f"usage {answer['usage']}")
            return
        with self._ask(STEADY, stream=True) as stream:
            events = [line for line in _expect(stream, 200).iter_lines() if line]
        if events[-1] != b"data: [DONE]":
            raise Unexpected(f"a stream that ends with {events[-1][:60]!r}")

    def _leave(self) -> None:
        with requests.Session() as session:
            session.headers.update(self._client.headers)
            with self._ask(STEADY, stream=True, session=session) as stream:
                next(_expect(stream, 200).iter_lines())

    def _chat_turning(self) -> None:
        with requests.Session() as session:
            session.headers.update(self._client.headers)
            answer = self._ask(TURNING, stream=False, session=session)
        # Stopped amid the request, the engine closes its connection.
        if answer.status_code != 200 and answer.json()["error"]["code"] not in ("model_not_ready", "upstream_error"):
            _expect(answer, 200)

    def _chat_refused(self) -> None:
        with requests.Session() as session:
            session.headers["Authorization"] = "Bearer ssk_wrong"
            _expect(self._ask(STEADY, stream=False, session=session), 401)

    # -- pages -------------------------------------------------------------------------------------------------------

    def _log_in(self, browser: requests.Session, password: str = PASSWORD) -> requests.Response:
        url = f"{self._fleet.url}/login"
        found = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', browser.get(url, timeout=_SECONDS).text)
        assert found is not None, "no form to log in"
        form = {"username": "admin", "password": password, "csrfmiddlewaretoken": found[1]}
        return browser.post(url, form, timeout=_SECONDS, allow_redirects=False)

    def _come_and_go(self) -> None:
        with requests.Session() as browser:
            _expect(self._log_in(browser), 302)
            _expect(browser.get(f"{self._fleet.url}/", timeout=_SECONDS), 200)
            form = {"csrfmiddlewaretoken": browser.cookies["csrftoken"]}
            url = f"{self._fleet.url}/logout"
            _expect(browser.post(url, form, timeout=_SECONDS, allow_redirects=False), 302)

    def _guess(self) -> None:
        with requests.Session() as browser:
            _expect(self._log_in(browser, "not the password"), 403)

    def _look(self) -> None:
        answer = self._browser.get(
            self._fleet.url + self._next("page", _PAGES), timeout=_SECONDS, allow_redirects=False
        )
        _expect(answer, 200)

    def _listen(self) -> None:
        cookie = "; ".join(f"{name}={value}" for name, value in self._browser.cookies.items())
        url = f"{self._fleet.url.replace('http', 'ws', 1)}/live"
        with connect(url, additional_headers={"Cookie": cookie}, origin=self._fleet.url, proxy=None) as socket:  # type: ignore[arg-type]
            socket.send("ping")
            until(lambda: socket.recv(timeout=_SECONDS) == "pong", "the answer of the websocket")

    # -- /api --------------------------------------------------------------------------------------------------------

    def _api(self, method: str, path: str, body: Any = None, session: requests.Session | None = None) -> Any:
        """Call `/api` on a connection of its own, or that of `session`."""
        heads = {"Authorization": self._tools.headers["Authorization"]}
        url = f"{self._fleet.url}/api/{path}"
        answer = (session or requests).request(method, url, json=body, headers=heads, timeout=_SECONDS)
        _expect(answer, 200, 201, 202, 204)
        return answer.json() if answer.content else None

    def _list(self) -> None:
        self._api("GET", self._next("list", _LISTS), session=self._tools)

    def _scrape(self) -> None:
        heads = {"Authorization": self._tools.headers["Authorization"]}
        text = _expect(requests.get(f"{self._fleet.url}/metrics", headers=heads, timeout=_SECONDS), 200).text
        if "mirbad_gateway_" not in text:
            raise Unexpected("metrics without those of the gateway")

    def _over(self, operation: dict[str, Any]) -> None:
        address = f"operations/{operation['id']}"

        def outcome() -> str:
            found: str = self._api("GET", address)["outcome"]
            return "" if found == "open" else found

        if (ended := until(outcome, f"the end of {operation['kind']}", _SECONDS, every=0.5)) != "succeeded":
            raise Unexpected(f"{operation['kind']} {ended}")

    def _start_and_stop(self) -> None:
        self._over(self._api("POST", f"models/{TURNING}/start", {"confirm": True}))
        self._over(self._api("POST", f"models/{TURNING}/stop"))

    def _define(self) -> None:
        body = {"id": "passing", "runtime": "sim", "delivery": "process", "placement": {"nodeId": "local"}}
        self._api("POST", "models", body)
        self._api("PUT", "models/passing", {**body, "args": ["--tokens-per-second", "5"]})
        self._api("DELETE", "models/passing")

    def _keys(self) -> None:
        made = self._api("POST", "keys", {"name": "passing"})
        self._api("POST", f"keys/{made['id']}/rotate", {"graceSeconds": 5})
        self._api("DELETE", f"keys/{made['id']}")

    def _download(self) -> None:
        files = {"config.json": b"{}", "model.safetensors": self._random.randbytes(_LARGE)}
        self._hub.add(Repository("acme/passing", files))
        self._hub.seen.clear()
        self._over(self._api("POST", "downloads", {"repository": "acme/passing"}))
        self._api("DELETE", "model-folders/acme--passing")
