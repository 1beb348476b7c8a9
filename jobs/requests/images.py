"""Requests of container images on a node, before a model needs them."""

import hashlib

from django.db import IntegrityError, transaction

from audit import log as audit_log
from jobs import ledger
from jobs.kinds import image_pull
from jobs.models import Operation
from jobs.queries import open_operation
from mirbad.kernel.actor import Actor
from mirbad.kernel.errors import Conflict, InvalidRequest
from models_app.artifacts import images
from nodes import fencing

_TARGET = "image"


def target_of(node_id: str, reference: str) -> str:
    """Return the target of operations on one image of one node: at most one is open."""
    return hashlib.sha256(f"{node_id}\n{reference}".encode()).hexdigest()[:40]


def request(node_id: str, image: str, digest: str, actor: Actor) -> Operation:
    """Pull an image to a node (without a name the default one); repeated, it returns the same operation.

    Raises InvalidRequest (no image named and no default set), SpecRejected, RuntimeUnavailable, Conflict (it is being
    cancelled), MasterFenced, and what `images.require_images` raises.
    """
    with audit_log.refusals_recorded("download", actor, node_id=node_id, target=image):
        fencing.require_unfenced()
        node = images.require_images(node_id)
        wanted = image or images.default_of(node)
        if not wanted:
            text = f"Name an image: node {node.pk!r} has no default one, and MIRBAD_ENGINE_IMAGE is not set."
            raise InvalidRequest(text, problems=[{"code": "image_required", "message": text, "field": "image"}])
        reference = images.admitted(node, wanted, digest).reference
        existing = open_operation(image_pull.KIND.concurrency_group, _TARGET, target_of(node.pk, reference))
        if existing is not None and existing.cancel_requested_at is not None:
            text = f"The pull of {reference} to node {node.pk!r} is being cancelled; try again in a moment."
            raise Conflict(text, fields={"operationId": existing.pk})
        return existing or _create(node.pk, reference, actor)


def _create(node_id: str, reference: str, actor: Actor) -> Operation:
    subject = ledger.Subject(_TARGET, target_of(node_id, reference), node_id)
    data = image_pull.ImagePullInput(reference=reference)
    try:
        with transaction.atomic():
            made = ledger.create(
                image_pull.KIND, image_pull.CHECKING, subject, actor, f"Pull of {reference} requested.", data
            )
            audit_log.record(
                "download",
                actor,
                node_id=node_id,
                operation_id=made.pk,
                target=reference,
                result="accepted",
                detail="container image",
            )
            return made
    except IntegrityError as error:
        raise Conflict(f"Another pull of {reference} was just started; reload.") from error
