"""Errors of getting weights.

MirbadError
├── InvalidRequest
│   └── NodeRequired             400 node_required
├── NotFound
│   └── RepositoryNotFound       404 repository_not_found
├── Conflict
│   ├── FolderInUse              409 folder_in_use
│   └── AgentTooOld              409 feature_missing
├── Gated                        403 gated
├── TokenRefused                 422 token_refused
├── PickleRefused                422 pickle_refused
├── ChoiceRequired               422 choice_required
├── SpecRejected                 422 spec_rejected
├── RuntimeUnavailable           422 runtime_unavailable
└── HubUnreachable               503 hub_unreachable
"""

from mirbad.kernel.errors import Conflict, InvalidRequest, MirbadError, NotFound, Unavailable


class NodeRequired(InvalidRequest):
    """With two or more fleet members the request must name a node."""

    code = "node_required"


class RepositoryNotFound(NotFound):
    """The hub has no such repository or revision, or hides it from this caller."""

    code = "repository_not_found"


class FolderInUse(Conflict):
    """A model runs from the folder."""

    code = "folder_in_use"


class AgentTooOld(Conflict):
    """The node's agent lacks the feature."""

    code = "feature_missing"


class Gated(MirbadError):
    """The repository is open only to accounts that accepted its terms."""

    code = "gated"
    http_status = 403


class TokenRefused(MirbadError):
    """The hub does not know the token."""

    code = "token_refused"
    http_status = 422


class PickleRefused(MirbadError):
    """The chosen files include Python pickles, and the model does not allow them."""

    code = "pickle_refused"
    http_status = 422


class ChoiceRequired(MirbadError):
    """The repository holds several models; the request must name one."""

    code = "choice_required"
    http_status = 422


class SpecRejected(MirbadError):
    """The node does not run this image."""

    code = "spec_rejected"
    http_status = 422


class RuntimeUnavailable(MirbadError):
    """The node cannot run containers."""

    code = "runtime_unavailable"
    http_status = 422


class HubUnreachable(Unavailable):
    """The master cannot reach the hub, or the hub does not answer in time."""

    code = "hub_unreachable"
