"""`make figures`: measures the product and prints one line a figure; exit code 1 when one falls short.

``ONLY=name`` measures one script or one group of them.
"""

import sys
from collections.abc import Callable, Iterator

from tests.figures import (
    audit,
    bad_input,
    clients,
    containers,
    downloads,
    faults,
    faults_engines,
    faults_logins,
    first_token,
    floods,
    gateway,
    killed,
    operations_kills,
    operations_moves,
    operations_replicas,
    placement_gpus_pages,
    placement_planner,
    placement_shapes,
    placement_telemetry,
    recovery,
    soak,
    suite,
    trust_ca_rotation,
    trust_enroll,
    trust_fencing,
    trust_fleet,
    trust_fuzz,
    trust_life,
    trust_pictures,
    trust_swaps,
)
from tests.figures.figure import Figure

SCRIPTS: dict[str, Callable[[], Iterator[Figure]]] = {
    "first-token": first_token.measure,
    "containers": containers.measure,
    "killed": killed.measure,
    "bad-input": bad_input.measure,
    "clients": clients.measure,
    "faults-engines": faults_engines.measure,
    "faults-logins": faults_logins.measure,
    "floods": floods.measure,
    "audit": audit.measure,
    "faults-table": faults.measure,
    "soak": soak.measure,
    "suite": suite.measure,
    "recovery": recovery.measure,
    "gateway": gateway.measure,
    "operations-kills": operations_kills.measure,
    "operations-moves": operations_moves.measure,
    "operations-replicas": operations_replicas.measure,
    "placement-downloads": downloads.measure,
    "placement-shapes": placement_shapes.measure,
    "placement-planner": placement_planner.measure,
    "placement-telemetry": placement_telemetry.measure,
    "placement-gpus-pages": placement_gpus_pages.measure,
    "trust-ca-rotation": trust_ca_rotation.measure,
    "trust-fencing": trust_fencing.measure,
    "trust-life": trust_life.measure,
    "trust-enroll": trust_enroll.measure,
    "trust-swaps": trust_swaps.measure,
    "trust-fuzz": trust_fuzz.measure,
    "trust-fleet": trust_fleet.measure,
    "trust-pictures": trust_pictures.measure,
}
_TRUST = tuple(name for name in SCRIPTS if name.startswith("trust-"))
_OPERATIONS = tuple(name for name in SCRIPTS if name.startswith("operations-"))
_PLACEMENT = tuple(name for name in SCRIPTS if name.startswith("placement-"))
_FAULTS = ("faults-engines", "faults-logins", "floods", "audit", "faults-table")
_BY_NAME = ("soak",)
"""Figures that take an hour run when they are named."""
_OTHERS = {*_TRUST, *_PLACEMENT, *_OPERATIONS, *_FAULTS, *_BY_NAME, "gateway", "clients"}
GROUPS = {
    "main-job": tuple(name for name in SCRIPTS if name not in _OTHERS),
    "faults": _FAULTS,
    "trust": _TRUST,
    "operations": _OPERATIONS,
    "gpus-placement": _PLACEMENT,
}


def _usual() -> list[str]:
    return [name for name in SCRIPTS if name not in _BY_NAME]


def main(wanted: list[str]) -> int:
    """Measure what is wanted, all when nothing is named."""
    names = [name for word in wanted or _usual() for name in GROUPS.get(word, (word,))]
    if unknown := [name for name in names if name not in SCRIPTS]:
        print(f"there is no figure {', '.join(unknown)}; there are {', '.join([*SCRIPTS, *GROUPS])}")
        return 2
    short = 0
    for name in names:
        for figure in SCRIPTS[name]():
            print(figure.line(), flush=True)
            short += not figure.ok
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main([word for word in sys.argv[1:] if word]))
