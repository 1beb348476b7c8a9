"""Two hundred log-ins at the same moment: memory of the web process, and the worst answer of ``/healthz`` meanwhile.

From 200 addresses, which a trusted proxy names, so that each one would be checked; then a flood from one address, and
good log-ins one after another.
"""

import http.client
import re
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from urllib.parse import urlencode

from tests.bench.webprocess import Web, during
from tests.figures.figure import Figure

ATTEMPTS, GOOD = 200, 10
PASSWORD = "correct horse battery"


def measure() -> Iterator[Figure]:
    """One master on SQLite."""
    with ExitStack() as stack:
        web = Web(stack, MIRBAD_TRUSTED_PROXIES="127.0.0.1")
        code = f"from mirbad.accounts.people import ensure_admin; ensure_admin({PASSWORD!r})"
        web.manage("shell", "--no-imports", "-c", code)
        yield from _run(web, "200 log-ins from 200 addresses", lambda number: f"198.51.{number}.1")
        yield from _run(web, "200 log-ins from one address", lambda _: "203.0.113.1")
        yield from _good(web)


def _run(web: Web, label: str, address: Callable[[int], str]) -> Iterator[Figure]:
    form, statuses = _page(web.port), Counter[int]()

    def flood() -> None:
        with ThreadPoolExecutor(ATTEMPTS) as pool:
            statuses.update(pool.map(lambda number: _post(web.port, form, address(number)), range(ATTEMPTS)))

    yield from during(web, label, flood)
    answers = " ".join(f"{status}={number}" for status, number in sorted(statuses.items()))
    yield Figure(f"{label}: answers", answers, "each one answered", statuses.total() == ATTEMPTS and 0 not in statuses)


def _good(web: Web) -> Iterator[Figure]:
    form, statuses = _page(web.port), Counter[int]()

    def people() -> None:
        for number in range(GOOD):
            statuses[_post(web.port, form, f"192.0.2.{number}", "admin", PASSWORD)] += 1

    label = f"{GOOD} good log-ins, one after another"
    yield from during(web, label, people)
    yield Figure(f"{label}: answers", f"302={statuses[302]}", f"302={GOOD}", statuses[302] == GOOD)


def _page(port: int) -> dict[str, str]:
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    line.request("GET", "/login")
    answer = line.getresponse()
    found = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', answer.read().decode())
    assert found is not None
    return {"token": found[1], "cookie": (answer.getheader("Set-Cookie") or "").split(";")[0]}


def _post(port: int, form: dict[str, str], address: str, name: str = "", password: str = "x") -> int:
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    sent = {"username": name or f"name-{address}", "password": password, "csrfmiddlewaretoken": form["token"]}
    head = {"Content-Type": "application/x-www-form-urlencoded", "Cookie": form["cookie"], "X-Forwarded-For": address}
    try:
        line.request("POST", "/login", urlencode(sent), head)
        return line.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        line.close()
