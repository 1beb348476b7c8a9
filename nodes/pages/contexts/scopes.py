"""The choice of one node on pages that show the fleet."""

from collections.abc import Iterable

from nodes.models import Node

MOST = 24
"""With more nodes than this the choice is not a row of links."""


def scopes() -> tuple[tuple[str, str], ...]:
    """Return `scopes_of` the nodes that are not revoked. One query."""
    found = Node.objects.not_revoked().order_by("id").only("id", "display_name")[: MOST + 1]
    return scopes_of((node.pk, node.name) for node in found)


def scopes_of(nodes: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Return the nodes to choose from, by id and name; none when there is only one, or too many."""
    rows = tuple(nodes)
    return rows if 1 < len(rows) <= MOST else ()
