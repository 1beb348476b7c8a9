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


def _orders() -> dict[str, Callable[..., Any]]:
    from django.core.management import call_command

    from agent.common.keys import key_to_pem
    from agent.wire.fence import FenceView
    from jobs import worker
    from jobs.loops import configured_takeover, resume
    from jobs.models import Operation
    from jobs.queries import unfinished
    from jobs.requests import takeover
    from mirbad.kernel.actor import CONFIG
    from mirbad.kernel.ids import new_operation_id
    from nodes import fencing
    from nodes.api.serializers import fencing_view
    from nodes.enrollment import tokens
    from nodes.link import client, health
    from nodes.models import MasterIdentity, Node
    from nodes.pki import authority
    from nodes.queries import rows
    from tests.nodes import parts

    def work() -> dict[str, Any]:
        for _ in range(40):
            operation = unfinished().first()
            if operation is None:
                break
            worker.run(operation.pk)
        newest = Operation.objects.order_by("-id").first()
        return {} if newest is None else {"outcome": newest.outcome, "result": newest.result, "error": newest.error}

    def take_over(confirm: str) -> dict[str, Any]:
        takeover.request(confirm, CONFIG)
        return work()

    def carry_on(node_id: str, takeover_id: str, agent_epoch: int, confirm: str) -> dict[str, Any]:
        takeover.resume(node_id, takeover_id, agent_epoch, confirm, CONFIG)
        return work()

    def command(node_id: str) -> Any:
        claim = fencing.claim()
        answer = client.call(node_id, "PUT", "fence", claim, answer=FenceView, operation_id=new_operation_id())
        return answer.to_wire()

    def join(node_id: str) -> str:
        return tokens.create(node_id, actor=CONFIG).token

    def enroll(node_id: str, port: int) -> dict[str, Any]:
        machine = parts.approved(node_id, address="192.0.2.9", port=port)
        # Loopback is for the master's own node alone; here all of them run on this machine.
        Node.objects.filter(pk=node_id).update(address="127.0.0.1", is_bootstrap=True)
        return {"key": key_to_pem(machine.key).decode(), "answer": machine.answer.to_wire()}

    return {
        "prepare": lambda: (call_command("migrate", verbosity=0), authority.ensure(), None)[-1],
        "join": join,
        "enroll": enroll,
        "connect": lambda node_id: health.connect(node_id).info.held_claim is not None,
        "command": command,
        "view": lambda: json.loads(json.dumps(fencing_view(MasterIdentity.objects.first(), rows()), default=str)),
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
