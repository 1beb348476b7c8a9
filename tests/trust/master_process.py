"""A master as a process of its own, for tests that need more than one: orders come as JSON lines on standard input.

``python -m tests.trust.master_process`` with the settings of that master in the environment. Every order is one call
of the product; the answer is one JSON line: ``{"value": …}`` or ``{"code": …, "detail": …}``.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

os.environ["DJANGO_SETTINGS_MODULE"] = "mirbad.settings"


def prepare() -> None:
    from django.core.management import call_command

    from nodes.pki import authority

    call_command("migrate", verbosity=0)
    authority.ensure()


def work() -> dict[str, Any]:
    """Run operations until none is left, as workers would. Return how the newest ended."""
    from jobs import worker
    from jobs.models import Operation
    from jobs.queries import unfinished

    for _ in range(40):
        operation = unfinished().first()
        if operation is None:
            break
        worker.run(operation.pk)
    newest = Operation.objects.order_by("-id").first()
    return {} if newest is None else {"outcome": newest.outcome, "result": newest.result, "error": newest.error}


def take_over(confirm: str) -> dict[str, Any]:
    from jobs.requests import takeover
    from mirbad.kernel.actor import CONFIG

    takeover.request(confirm, CONFIG)
    return work()


def carry_on(node_id: str, takeover_id: str, agent_epoch: int, confirm: str) -> dict[str, Any]:
    from jobs.requests import takeover
    from mirbad.kernel.actor import CONFIG

    takeover.resume(node_id, takeover_id, agent_epoch, confirm, CONFIG)
    return work()


def command(node_id: str) -> Any:
    """Change something on a node: its agent obeys or refuses."""
    from agent.wire.fence import FenceView
    from mirbad.kernel.ids import new_operation_id
    from nodes import fencing
    from nodes.link import client

    claim = fencing.claim()
    return client.call(node_id, "PUT", "fence", claim, answer=FenceView, operation_id=new_operation_id()).to_wire()


def join(node_id: str) -> str:
    from mirbad.kernel.actor import CONFIG
    from nodes.enrollment import tokens

    return tokens.create(node_id, actor=CONFIG).token


def enroll(node_id: str, port: int) -> dict[str, Any]:
    from agent.common.keys import key_to_pem
    from nodes.models import Node
    from tests.nodes import parts

    machine = parts.approved(node_id, address="192.0.2.9", port=port)
    # Loopback is for the master's own node alone; here all of them run on this machine.
    Node.objects.filter(pk=node_id).update(address="127.0.0.1", is_bootstrap=True)
    return {"key": key_to_pem(machine.key).decode(), "answer": machine.answer.to_wire()}


def connect(node_id: str) -> bool:
    from nodes.link import health

    return health.connect(node_id).info.held_claim is not None


def view() -> Any:
    from nodes.api.serializers import fencing_view
    from nodes.models import MasterIdentity
    from nodes.queries import rows

    return json.loads(json.dumps(fencing_view(MasterIdentity.objects.first(), rows()), default=str))


def _orders() -> dict[str, Callable[..., Any]]:
    from jobs.loops import configured_takeover, resume

    return {
        "prepare": prepare,
        "join": join,
        "enroll": enroll,
        "connect": connect,
        "command": command,
        "view": view,
        "takeOver": take_over,
        "continue": carry_on,
        "wishes": configured_takeover.look_once,
        "atStart": configured_takeover.at_start,
        "work": work,
        "resume": resume.resume_once,
    }


def main() -> None:
    """Obey until standard input ends."""
    import django

    django.setup()
    from mirbad.kernel import logs
    from mirbad.kernel.errors import MirbadError

    logs.configure("master", console=False)
    orders = _orders()
    for line in sys.stdin:
        name, arguments = json.loads(line)
        try:
            answer = {"value": orders[name](**arguments)}
        except MirbadError as error:
            answer = {"code": error.code, "detail": error.detail}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
