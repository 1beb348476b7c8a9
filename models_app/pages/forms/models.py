"""The form of a model. It turns fields into a `ModelInput`, whose rules are in the registry."""

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from django import forms

from mirbad.kernel.errors import InvalidRequest
from models_app import queries
from models_app.artifacts.selection import folder_for
from models_app.models import ModelDefinition
from models_app.models.definition import DELIVERIES, FIRST_BYTE_SECONDS, ON_FAILURE, RESTART_POLICIES, RUNTIMES
from models_app.registry import ModelInput, of_fleet, parse

GIB = 1024**3
_SAME = (
    "id",
    "display_name",
    "runtime",
    "delivery",
    "image",
    "image_digest",
    "context_length",
    "start_timeout_seconds",
    "first_byte_timeout_seconds",
    "idle_timeout_seconds",
    "wait_when_starting_seconds",
    "auto_start",
    "restart_policy",
    "keep_serving",
    "allow_pickle",
)
_CODE = {"spellcheck": "false", "autocapitalize": "none", "autocomplete": "off"}


_OFFERED = ("id", "node", "folder", "file", "repository", "revision", "runtime", "delivery")


def _lines(rows: int) -> forms.Textarea:
    return forms.Textarea(attrs={"rows": rows, **_CODE})


class ModelForm(forms.Form):
    """A model definition with its weights and placement."""

    id = forms.CharField(
        label="Model id",
        max_length=64,
        help_text="Lower-case letters, digits, dots, hyphens. Can't be changed later.",
        widget=forms.TextInput(attrs=_CODE),
    )
    display_name = forms.CharField(label="Display name", max_length=100, required=False)
    node = forms.ChoiceField(label="Node", required=False)
    folder = forms.CharField(label="Weights folder", max_length=255, required=False)
    file = forms.CharField(label="GGUF file", max_length=512, required=False)
    projector = forms.CharField(label="Projector", max_length=512, required=False)
    gpu_uuids = forms.MultipleChoiceField(label="GPUs", required=False)
    runtime = forms.ChoiceField(label="Runtime", choices=RUNTIMES)
    delivery = forms.ChoiceField(label="Delivery", choices=DELIVERIES)
    image = forms.CharField(
        label="Image", max_length=255, required=False, help_text="Default: the node's image, then the master's."
    )
    image_digest = forms.CharField(
        label="Image digest", max_length=80, required=False, help_text="sha256: followed by 64 hex digits."
    )
    served_names = forms.CharField(
        label="Served names", required=False, widget=_lines(2), help_text="One per line. Default: the model id."
    )
    args = forms.CharField(
        label="Engine arguments",
        required=False,
        widget=_lines(4),
        help_text="One argument per line, as on the engine's command line.",
    )
    env = forms.CharField(label="Environment", required=False, widget=_lines(3), help_text="NAME=value, one per line.")
    secret_env = forms.CharField(
        label="Secret environment",
        required=False,
        widget=_lines(3),
        help_text="NAME=value, one per line. Encrypted and never shown again. NAME alone keeps the stored value.",
    )
    context_length = forms.IntegerField(label="Context length", required=False, min_value=1, help_text="Tokens.")
    gpu_budget_gib = forms.DecimalField(label="GPU memory budget (GiB)", required=False, min_value=Decimal("0.01"))
    host_budget_gib = forms.DecimalField(label="Host memory budget (GiB)", required=False, min_value=Decimal("0.01"))
    start_timeout_seconds = forms.IntegerField(label="Start timeout (s)", min_value=1, initial=1800)
    first_byte_timeout_seconds = forms.IntegerField(
        label="First-token timeout (s)",
        min_value=1,
        initial=FIRST_BYTE_SECONDS,
        help_text="Without streaming: until the whole response is there.",
    )
    idle_timeout_seconds = forms.IntegerField(label="Stream idle timeout (s)", min_value=1, initial=300)
    wait_when_starting_seconds = forms.IntegerField(
        label="Wait while starting (s)",
        min_value=0,
        initial=0,
        help_text="0: requests are refused until the model is ready.",
    )
    tags = forms.CharField(label="Tags", required=False, help_text="Comma-separated.")
    auto_start = forms.BooleanField(
        label="Always start with the master",
        required=False,
        help_text="Even if someone stopped it before.",
    )
    restart_policy = forms.ChoiceField(
        label="Restart when the engine ends",
        choices=RESTART_POLICIES,
        initial=ON_FAILURE,
        required=False,
        help_text="On failure: with growing pauses, then stopped if it keeps ending.",
    )
    keep_serving = forms.BooleanField(
        label="Keep serving during jobs", required=False, help_text="Benchmarks on its node do not pause this model."
    )
    repository = forms.CharField(
        label="Hugging Face repository",
        max_length=255,
        required=False,
        help_text="owner/name. A start downloads the missing files.",
        widget=forms.TextInput(attrs=_CODE),
    )
    revision = forms.CharField(
        label="Revision", max_length=80, required=False, help_text="Default: main.", widget=forms.TextInput(attrs=_CODE)
    )
    allow_pickle = forms.BooleanField(
        label="Allow Python pickles",
        required=False,
        help_text="Pickle files (.bin, .pt) can execute code when loaded.",
    )
    placement_generation = forms.IntegerField(required=False, widget=forms.HiddenInput)

    def __init__(
        self,
        data: Any = None,
        *,
        nodes: Sequence[tuple[str, str]],
        model: ModelDefinition | None = None,
        begin: Mapping[str, str] | None = None,
    ) -> None:
        self.model = model
        # A link may carry the first values of a new model.
        offered = {name: begin[name] for name in _OFFERED if name in begin} if begin else None
        super().__init__(data, initial=_initial(model) if model else offered)
        self.fields["node"].choices = [*_no_node(nodes, model), *nodes]  # type: ignore[attr-defined]
        chosen = (data.getlist("gpu_uuids") if data is not None else self.initial.get("gpu_uuids")) or ()
        # Any UUID may be sent; the registry checks that the node has it.
        self.fields["gpu_uuids"].choices = [(uuid, uuid) for uuid in chosen]  # type: ignore[attr-defined]
        if model is not None:
            self.fields["id"].widget.attrs["readonly"] = True
            if self.initial["node"]:
                self.fields["node"].choices = [  # type: ignore[attr-defined]
                    choice for choice in nodes if choice[0] == self.initial["node"]
                ] or [(self.initial["node"], self.initial["node"])]
        elif len(nodes) == 1:
            self.initial["node"] = nodes[0][0]

    def value_of(self, name: str) -> str:
        """Return the value that the field shows: the typed one, else the stored one."""
        value = self[name].value()
        return "" if value is None else str(value)

    def place_errors(self) -> list[tuple[str, list[tuple[str, str]]]]:
        """Return the errors of the fields that depend on the node, each with its code; the page shows them apart."""
        found = []
        for name in ("node", "folder", "file", "projector", "gpu_uuids"):
            errors = self.errors.get(name)
            if errors:
                shown = [(str(item.message), item.code or "") for item in errors.as_data()]
                found.append((name, shown))
        return found

    def clean_restart_policy(self) -> str:
        """Return the policy; a form without the field keeps the default."""
        return self.cleaned_data["restart_policy"] or ON_FAILURE

    def read(self) -> ModelInput | None:
        """Return the input, or None after setting the form's errors."""
        if not self.is_valid():
            return None
        try:
            return parse(self._document(), of_fleet)
        except InvalidRequest as error:
            self.refuse(error)
            return None

    def preview(self) -> ModelInput:
        """Return the values that decide the fit, as far as typed. Raises InvalidRequest that names the missing ones."""
        self.is_valid()
        data = self.cleaned_data
        source = _source(data)
        return parse(
            {
                "id": self.model.pk if self.model is not None else "new",
                "runtime": data.get("runtime", ""),
                "delivery": data.get("delivery", ""),
                "image": data.get("image", ""),
                "image_digest": data.get("image_digest", ""),
                "args": _listed(data.get("args", "")),
                "context_length": data.get("context_length"),
                "gpu_memory_budget_bytes": _bytes(data.get("gpu_budget_gib")),
                "host_memory_budget_bytes": _bytes(data.get("host_budget_gib")),
                "sources": [source] if source else [],
            },
            of_fleet,
        )

    def refuse(self, error: InvalidRequest) -> None:
        """Show each problem of `error` next to its field."""
        for problem in error.problems or [{"message": error.detail}]:
            field = _field_of(problem)
            # Next to its field a message need not repeat the field's path.
            text = problem["message"].removeprefix(f"{problem.get('field')}: ") if field else problem["message"]
            self.add_error(field, forms.ValidationError(text, code=problem.get("code")))

    def _document(self) -> dict[str, Any]:
        data = self.cleaned_data
        source = _source(data)
        document: dict[str, Any] = {name: data[name] for name in _SAME}
        document |= {
            "served_names": _listed(data["served_names"]),
            "args": _listed(data["args"]),
            "env": {name: value or "" for name, value in self._pairs("env").items()},
            "secret_env": self._pairs("secret_env"),
            "gpu_memory_budget_bytes": _bytes(data["gpu_budget_gib"]),
            "host_memory_budget_bytes": _bytes(data["host_budget_gib"]),
            "tags": [tag.strip() for tag in data["tags"].split(",") if tag.strip()],
            "sources": [source] if source else [],
        }
        if self.model is not None and self.model.sources.count() > 1 and "folder" not in self.changed_data:
            kept = self.model.sources.order_by("position").values(
                "kind", "folder", "file", "projector", "repository", "revision"
            )
            document["sources"] = [dict(source) for source in kept]
        if data["node"]:
            document["placement"] = {"node_id": data["node"], "gpu_uuids": data["gpu_uuids"]}
            document["placement_generation"] = data["placement_generation"]
        return document

    def _pairs(self, field: str) -> dict[str, str | None]:
        pairs: dict[str, str | None] = {}
        for line in self.cleaned_data[field].splitlines():
            if line.strip():
                name, equals, value = line.partition("=")
                pairs[name.strip()] = value if equals else None
        return pairs


def _no_node(nodes: Sequence[tuple[str, str]], model: ModelDefinition | None) -> list[tuple[str, str]]:
    """Return the empty choice: "No node yet", "Choose a node" for several, none when the only node is the default."""
    if model is not None or not nodes:
        return [("", "No node yet")]
    return [("", "Choose a node")] if len(nodes) > 1 else []


# Names that differ between input and form, and rules over several fields by their code.
_RENAMED = {
    "gpu_memory_budget_bytes": "gpu_budget_gib",
    "host_memory_budget_bytes": "host_budget_gib",
    "sources": "folder",
    "placement": "node",
}
_BY_CODE = {
    "env_name_duplicate": "env",
    "file_not_first": "file",
    "file_not_gguf": "file",
    "file_not_model": "file",
    "image_required": "image",
    "image_without_container": "image",
    "served_name_duplicate": "served_names",
    "source_required": "folder",
}


def _field_of(problem: Mapping[str, str]) -> str | None:
    """Return the form's field for a problem (its path is snake_case or camelCase), None for the whole form."""
    path = re.sub(r"([A-Z])", r"_\1", problem.get("field", "")).lower()
    if path.startswith("placement.gpu_uuids"):
        return "gpu_uuids"
    head = path.split(".")[0]
    name = _RENAMED.get(head, head) or _BY_CODE.get(problem.get("code", ""), "")
    return name if name in ModelForm.base_fields else None


def _source(data: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the source of weights, None without a folder or repository."""
    repository = (data.get("repository") or "").strip()
    folder = (data.get("folder") or "").strip() or (folder_for(repository) if repository else "")
    if not folder:
        return None
    source = {name: (data.get(name) or "").strip() for name in ("file", "projector")} | {"folder": folder}
    if repository:
        source |= {"kind": "huggingface", "repository": repository, "revision": (data.get("revision") or "").strip()}
    return source


def _listed(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _bytes(gib: Decimal | None) -> int | None:
    return None if gib is None else int(gib * GIB)


def _gib(value: int | None) -> str | None:
    return None if value is None else f"{value / GIB:.2f}".rstrip("0").rstrip(".")


def _initial(model: ModelDefinition) -> dict[str, Any]:
    source = next(iter(model.sources.all()), None)
    placement = queries.primary(model)
    return {name: getattr(model, name) for name in _SAME} | {
        "node": placement.node_id_text if placement else "",
        "gpu_uuids": list(placement.gpu_uuids) if placement else [],
        "placement_generation": placement.generation if placement else None,
        "folder": source.folder if source else "",
        "file": source.file if source else "",
        "projector": source.projector if source else "",
        "repository": source.repository if source else "",
        "revision": source.revision if source else "",
        "served_names": "\n".join(model.served_names),
        "args": "\n".join(model.args),
        "env": "\n".join(f"{name}={value}" for name, value in model.env.items()),
        "secret_env": "\n".join(model.secret_env_names),
        "gpu_budget_gib": _gib(model.gpu_memory_budget_bytes),
        "host_budget_gib": _gib(model.host_memory_budget_bytes),
        "tags": ", ".join(model.tags),
    }
