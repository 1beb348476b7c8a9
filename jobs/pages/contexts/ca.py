"""View-model of the fleet's CA and its rotation."""

from typing import Any

from django.http import HttpRequest

from jobs.kinds import ca_rotation
from jobs.pages.contexts.rows import StageMark
from mirbad.kernel.roles import OWNER, has_role
from nodes.pki import progress
from nodes.states import CA_ROLLED_BACK, CA_ROLLING_BACK


def context(request: HttpRequest) -> dict[str, Any]:
    """Return the CAs, the newest rotation with its stages while it is open, and the permission to replace the CA."""
    found = progress.read()
    return {
        "ca": found,
        "stages": _marks(found.rotation.stage) if found.rotation is not None and found.is_open else (),
        "may_replace": has_role(request.user, OWNER),
    }


def _marks(stage: str) -> tuple[StageMark, ...]:
    stages = ca_rotation.KIND.stages
    if stage in (CA_ROLLING_BACK, CA_ROLLED_BACK):
        return (StageMark(str(ca_rotation.KIND.stage(CA_ROLLING_BACK).words), "now", "loader"),)
    on_path = [one for one in stages if not one.aside]
    at = [one.name for one in on_path].index(stage)
    shown = [("done", "circle-check"), ("now", "loader"), ("ahead", "circle-dashed")]
    return tuple(StageMark(str(one.words), *shown[(index >= at) + (index > at)]) for index, one in enumerate(on_path))
