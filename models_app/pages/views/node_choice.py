"""The node of a page that shows one node: the one of ``?node=``, else the first."""

from django.http import Http404, HttpRequest

from nodes.models import Node


def chosen(request: HttpRequest) -> tuple[list[Node], Node | None]:
    """Return the nodes to choose from, and the shown one."""
    nodes = list(Node.objects.approved().order_by("id"))
    node_id = request.GET.get("node") or request.POST.get("node", "")
    if not node_id:
        return nodes, nodes[0] if nodes else None
    found = next((node for node in nodes if node.pk == node_id), None)
    if found is None:
        raise Http404(f"Node {node_id} does not exist.")
    return nodes, found
