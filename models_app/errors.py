"""Errors of the models app.

MirbadError
├── InvalidRequest
│   ├── PlacementInvalid         400 placement_invalid (problems)
│   ├── PlacementRequired        400 placement_required
│   ├── UseMove                  400 use_move
│   └── UseUnplace               400 use_unplace
├── GpuMissing                   422 gpu_missing
├── GpuUnusable                  422 gpu_unusable
├── ImageMissing                 422 image_missing
└── Conflict
    ├── ModelBusy                409 model_busy
    ├── ModelPlaced              409 invalid_state
    ├── NoPlace                  409 no_place (problems: each node and why not)
    ├── PlacementChanged         409 placement_changed
    ├── ModelNotMovable          409 model_not_movable
    └── NameTaken                409 name_taken
"""

from mirbad.kernel.errors import Conflict, InvalidRequest, MirbadError


class PlacementInvalid(InvalidRequest):
    """The placement breaks rules; `problems` lists each with its code."""

    code = "placement_invalid"


class PlacementRequired(InvalidRequest):
    """With two or more fleet members a new model needs a node."""

    code = "placement_required"


class UseMove(InvalidRequest):
    """An edit names another node: use a move."""

    code = "use_move"


class UseUnplace(InvalidRequest):
    """An edit clears the node: use an unplace."""

    code = "use_unplace"


class ModelBusy(Conflict):
    """Another action holds the model."""

    code = "model_busy"


class ModelPlaced(Conflict):
    """The model still runs or is placed on a node."""


class PlacementChanged(Conflict):
    """The placement changed since the caller read it."""

    code = "placement_changed"


class ModelNotMovable(Conflict):
    """The model cannot be moved: its weights have no repository, or it runs on several nodes as one."""

    code = "model_not_movable"


class NoPlace(Conflict):
    """No node can take the model now, or the fit is unknown; `problems` has the rejection of each node."""

    code = "no_place"


class NameTaken(Conflict):
    """The id or a served name belongs to another model."""

    code = "name_taken"


class GpuMissing(MirbadError):
    """The model's GPU is no longer on its node."""

    code = "gpu_missing"
    http_status = 422


class GpuUnusable(MirbadError):
    """The model's GPU is lost, or its driver asks for a reset, a reboot or a drain first."""

    code = "gpu_unusable"
    http_status = 422


class ImageMissing(MirbadError):
    """A model that runs as a container has no image, and neither its node nor the master has a default one."""

    code = "image_missing"
    http_status = 422
