"""``/api/nodes/{id}/images``: container images that a node runs, has, and is to pull."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from jobs import images as wishes
from jobs.api.serializers import OperationSerializer
from jobs.api.views import Accepting
from mirbad.api.serializers import CamelSerializer, read
from mirbad.kernel.roles import OPERATOR, VIEWER
from models_app.artifacts import images
from models_app.artifacts.images import Shelf


class PullInputSerializer(CamelSerializer):
    """The image to pull, with its digest apart or in the name; without a name the node's default one."""

    image = serializers.CharField(max_length=512, allow_blank=True, default="")
    image_digest = serializers.RegexField(r"^(sha256:[0-9a-f]{64})?$", allow_blank=True, default="")


class NamedImageSerializer(CamelSerializer):
    """An image by its name. `present` is null while the node cannot tell; `size_bytes` is of one that is there."""

    reference = serializers.CharField()
    present = serializers.BooleanField(allow_null=True)
    size_bytes = serializers.IntegerField(allow_null=True)


class StoredImageSerializer(CamelSerializer):
    """An image that the node's Docker Engine has, by its names."""

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


def _named(shelf: Shelf, reference: str) -> dict[str, Any]:
    found = shelf.has(reference)
    present = None if shelf.here is None or (found is None and shelf.truncated) else found is not None
    return {"reference": reference, "present": present, "size_bytes": found.size_bytes if found else None}


class NodeImages(Accepting):
    """Container images of a node."""

    asks_nodes = True

    read_role = VIEWER
    required_role = OPERATOR

    @extend_schema(operation_id="nodes_images", responses=NodeImagesSerializer)
    def get(self, request: Request, node_id: str) -> Response:
        """Which images it runs, which one its models get, and what is there now."""
        shelf = images.shelf(node_id)
        body = {
            "node_id": shelf.node.pk,
            "allow_tag_pulls": shelf.allow_tag_pulls,
            "approved": [_named(shelf, reference) for reference in shelf.approved],
            "defaults": [_named(shelf, reference) for reference in shelf.defaults],
            "items": None if shelf.here is None else [image.model_dump() for image in shelf.here],
            "truncated": shelf.truncated,
            "problem": shelf.problem,
        }
        return Response(NodeImagesSerializer(body).data)


class ImagePull(Accepting):
    """A pull of an image to a node."""

    asks_nodes = True

    required_role = OPERATOR
    audited = {"POST": "download"}

    @extend_schema(operation_id="nodes_images_pull", request=PullInputSerializer, responses={202: OperationSerializer})
    def post(self, request: Request, node_id: str) -> Response:
        """Have the image there before a model needs it; asked twice, it is the same operation."""
        asked = read(PullInputSerializer, request.data)
        return self.accepted(wishes.request(node_id, asked["image"], asked["image_digest"], self.actor))
