"""``/api/nodes/{id}/images``: container images that a node runs and has, and pulls of images."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from jobs.api.serializers import OperationSerializer
from jobs.api.views import AcceptingView
from jobs.requests import images as requests
from mirbad.api.serializers import CamelSerializer, read
from mirbad.kernel.roles import OPERATOR, VIEWER
from models_app.artifacts import images
from models_app.artifacts.images import ImageInventory


class PullInputSerializer(CamelSerializer):
    """The image to pull, with its digest in the name or apart. Default: the node's default image."""

    image = serializers.CharField(max_length=512, allow_blank=True, default="")
    image_digest = serializers.RegexField(r"^(sha256:[0-9a-f]{64})?$", allow_blank=True, default="")


class NamedImageSerializer(CamelSerializer):
    """An image by its name. `present` is null while unknown; `size_bytes` is of a present image."""

    reference = serializers.CharField()
    present = serializers.BooleanField(allow_null=True)
    size_bytes = serializers.IntegerField(allow_null=True)


class StoredImageSerializer(CamelSerializer):
    """An image of the node's Docker Engine, by its names."""

    references = serializers.ListField(child=serializers.CharField())
    size_bytes = serializers.IntegerField(allow_null=True)


class NodeImagesSerializer(CamelSerializer):
    """Images of a node. `allow_tag_pulls` and `approved` are the machine owner's, from its ``agent.json``."""

    node_id = serializers.CharField()
    allow_tag_pulls = serializers.BooleanField(allow_null=True)
    approved = NamedImageSerializer(many=True)
    defaults = NamedImageSerializer(many=True)
    items = StoredImageSerializer(many=True, allow_null=True)
    truncated = serializers.BooleanField()
    problem = serializers.CharField(allow_blank=True)


def _named(inventory: ImageInventory, reference: str) -> dict[str, Any]:
    found = inventory.has(reference)
    present = None if inventory.here is None or (found is None and inventory.truncated) else found is not None
    return {"reference": reference, "present": present, "size_bytes": found.size_bytes if found else None}


class NodeImagesView(AcceptingView):
    """Container images of a node."""

    asks_nodes = True

    read_role = VIEWER
    required_role = OPERATOR

    @extend_schema(operation_id="nodes_images", responses=NodeImagesSerializer)
    def get(self, request: Request, node_id: str) -> Response:
        """List the images that a node runs, its default image, and the images on it now."""
        inventory = images.of_node(node_id)
        body = {
            "node_id": inventory.node.pk,
            "allow_tag_pulls": inventory.allow_tag_pulls,
            "approved": [_named(inventory, reference) for reference in inventory.approved],
            "defaults": [_named(inventory, reference) for reference in inventory.defaults],
            "items": None if inventory.here is None else [image.model_dump() for image in inventory.here],
            "truncated": inventory.truncated,
            "problem": inventory.problem,
        }
        return Response(NodeImagesSerializer(body).data)


class PullImage(AcceptingView):
    """A pull of an image to a node."""

    asks_nodes = True

    required_role = OPERATOR
    audited = {"POST": "download"}

    @extend_schema(operation_id="nodes_images_pull", request=PullInputSerializer, responses={202: OperationSerializer})
    def post(self, request: Request, node_id: str) -> Response:
        """Pull an image before a model needs it. Repeating the request returns the same operation."""
        data = read(PullInputSerializer, request.data)
        return self.accepted(requests.request(node_id, data["image"], data["image_digest"], self.actor))
