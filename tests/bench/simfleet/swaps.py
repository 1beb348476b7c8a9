"""``python -m tests.bench.simfleet.swaps COUNT``: swap the enroll listener's certificate under continuous handshakes.

Every tenth is torn: certificate and key do not belong together. Prints JSON.
"""

import asyncio
import json
import sys
from typing import Any

import django

from tests.bench.simfleet.bad_requests import http
from tests.bench.simfleet.handshakes import Handshakes
from tests.waiting import pause_async

CALLERS = 4
PAUSE_SECONDS = 0.1


def _store_fresh(torn: bool) -> None:
    from agent.common import keys
    from agent.wire.base import ENROLL_SERVER_NAME
    from mirbad.kernel import clock
    from nodes.models import MasterIdentity
    from nodes.pki import authority, store
    from nodes.pki.certs import issue_enroll, to_pem

    key, other = keys.new_key(), keys.new_key()
    hosts = (ENROLL_SERVER_NAME, *authority.enroll_hosts())
    cert = issue_enroll(store.issuer(), (other if torn else key).public_key(), hosts, clock.now())
    MasterIdentity.objects.update(
        enroll_cert_pem=to_pem(cert), enroll_key_sealed=store.seal_key(keys.key_to_pem(key), store.ENROLL_KEY)
    )


async def _run(count: int) -> dict[str, Any]:
    from agent.wire.base import ENROLL_SERVER_NAME
    from mirbad.kernel.conf import settings
    from nodes.enrollment.listener import Listener
    from nodes.link import client
    from nodes.pki import authority, store
    from nodes.pki.tls import trusting_context

    await client.in_thread(authority.ensure)
    listener = Listener(settings())
    await listener.start()
    context = await client.in_thread(lambda: trusting_context(store.trust().bundle))
    shaken = Handshakes(listener.port, context, ENROLL_SERVER_NAME, http(b"{}", headers="Connection: close\r\n"))
    ended = asyncio.Event()
    callers = [asyncio.create_task(shaken.keep_on(ended)) for _ in range(CALLERS)]
    swapped = kept = 0
    for number in range(count):
        await pause_async(PAUSE_SECONDS)
        torn = number % 10 == 4
        await client.in_thread(lambda torn=torn: _store_fresh(torn))  # type: ignore[misc]
        shaken.swaps += 1
        if await listener.refresh_identity():
            swapped += 1
        else:
            kept += torn
    await pause_async(PAUSE_SECONDS)
    ended.set()
    await asyncio.gather(*callers)
    await listener.stop()
    await client.close()
    return {
        "swapped": swapped, "kept": kept, "good": shaken.good, "cut": shaken.cut, "failed": shaken.failed,
        "keys": len(shaken.keys),
    }  # fmt: skip


if __name__ == "__main__":
    django.setup()
    print(json.dumps(asyncio.run(_run(int(sys.argv[1])))))
