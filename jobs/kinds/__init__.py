"""The literal table of kinds. Kinds do not know each other."""

from jobs.base import Kind
from jobs.kinds import launch, stop

KINDS: dict[str, Kind] = {kind.name: kind for kind in (launch.KIND, stop.KIND)}
