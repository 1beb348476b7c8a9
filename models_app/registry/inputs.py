"""What an operator may send as a model, with every rule of its shape. Rules across rows stand in `writes`."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails, PydanticCustomError

from mirbad.kernel.errors import InvalidRequest
from mirbad.kernel.ids import is_model_id
from models_app.registry import flags

_SERVED_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._:@+-]|/(?!/|\Z)){0,127}")
_IMAGE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._:/-]){0,254}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_RESERVED_ENV = frozenset(
    {
        *("PATH", "HOME", "LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP"),
        *("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
        *("VLLM_API_KEY", "VLLM_HOST_IP", "VLLM_PORT", "LLAMA_API_KEY", "SIM_API_KEY"),
    }
)
_RESERVED_ENV_PREFIXES = ("MIRBAD_", "LLAMA_ARG_", "VLLM_PLUGINS")


def _problem(code: str, message: str) -> PydanticCustomError:
    # Braces in the message would be read as a template.
    return PydanticCustomError("mirbad_rule", "{message}", {"rule": code, "message": message})


def _model_id(value: str) -> str:
    if not is_model_id(value):
        raise _problem(
            "id_invalid", "Give 1-64 of a-z, 0-9, '.', '_' and '-', beginning with a letter or a digit; no slash."
        )
    return value


def _served_name(value: str) -> str:
    if not _SERVED_NAME.fullmatch(value):
        raise _problem(
            "served_name_invalid",
            "A served name has 1-128 of letters, digits and . _ : @ + - / and begins with a letter or a digit.",
        )
    return value


def _image(value: str) -> str:
    if value and "@" in value:
        raise _problem("image_has_digest", "Give the digest in imageDigest, not behind the image's name.")
    if value and not _IMAGE.fullmatch(value):
        raise _problem("image_invalid", "Give an image as registry/repository[:tag].")
    return value


def _digest(value: str) -> str:
    if value and not _DIGEST.fullmatch(value):
        raise _problem("image_digest_invalid", "Give the digest as sha256: and 64 lower-case hex digits.")
    return value


def _relative(value: str) -> str:
    parts = value.split("/")
    if value and ("\\" in value or "\0" in value or any(part in ("", ".", "..") for part in parts)):
        raise _problem("path_invalid", "Give a path below the models root: relative, with no '..' in it.")
    return value


def _text(value: str) -> str:
    if "\0" in value:
        raise _problem("text_invalid", "A NUL character cannot be passed to an engine.")
    return value


def _env_name(value: str) -> str:
    if not _ENV_NAME.fullmatch(value):
        raise _problem("env_name_invalid", f"{value!r} is not a name of an environment variable.")
    if value in _RESERVED_ENV or value.startswith(_RESERVED_ENV_PREFIXES):
        raise _problem("env_name_reserved", f"{value} is set by Mirbad; use arguments or placement instead.")
    return value


Text = Annotated[str, Field(max_length=8192), AfterValidator(_text)]
EnvName = Annotated[str, AfterValidator(_env_name)]
ServedName = Annotated[str, AfterValidator(_served_name)]
RelativePath = Annotated[str, Field(max_length=512), AfterValidator(_relative)]
Seconds = Annotated[int, Field(ge=1, le=24 * 3600)]
Bytes = Annotated[int, Field(ge=1, le=2**62)]


class _Input(BaseModel):
    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        hide_input_in_errors=True,
    )


class SourceInput(_Input):
    """Where the weights are. `file` names a GGUF in the folder."""

    kind: Literal["folder", "huggingface"] = "folder"
    folder: Annotated[str, Field(max_length=255), AfterValidator(_relative)] = ""
    file: RelativePath = ""
    repository: Annotated[str, Field(max_length=255, pattern=r"^$|^[A-Za-z0-9._-]+/[A-Za-z0-9._-]+$")] = ""
    revision: Annotated[str, Field(max_length=80, pattern=r"^[A-Za-z0-9._/-]*$")] = ""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if not self.folder:
            raise _problem("folder_required", "Name the folder below the node's models root that holds the weights.")
        if self.kind == "huggingface" and not self.repository:
            raise _problem("repository_required", "Name the Hugging Face repository as owner/name.")
        return self


class PlacementInput(_Input):
    """The node, and on one with GPUs of their own memory, which of them."""

    node_id: Annotated[str, Field(min_length=1, max_length=40)]
    gpu_uuids: Annotated[list[Annotated[str, Field(min_length=1, max_length=80)]], Field(max_length=64)] = []


class ModelInput(_Input):
    """A whole model definition, as it is created or saved.

    `secret_env` maps a name to its value, or to None to keep the value that is stored. A field that was not sent has
    its default, except `placement`: not sent leaves it alone, None clears it. `placement_generation` is what the
    sender read, and guards a change of GPUs. `placements` is for a new model that several nodes hold together, rank 0
    first.
    """

    id: Annotated[str, AfterValidator(_model_id)]
    display_name: Annotated[str, Field(max_length=100), AfterValidator(_text)] = ""
    runtime: Literal["vllm", "llama.cpp", "sim"]
    delivery: Literal["container", "process"]
    image: Annotated[str, AfterValidator(_image)] = ""
    image_digest: Annotated[str, AfterValidator(_digest)] = ""
    served_names: Annotated[list[ServedName], Field(max_length=16)] = []
    args: Annotated[list[Text], Field(max_length=256)] = []
    env: Annotated[dict[EnvName, Text], Field(max_length=128)] = {}
    secret_env: Annotated[dict[EnvName, SecretStr | None], Field(max_length=64)] = {}
    context_length: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    gpu_memory_budget_bytes: Bytes | None = None
    host_memory_budget_bytes: Bytes | None = None
    start_timeout_seconds: Seconds = 1800
    first_byte_timeout_seconds: Seconds = 300
    idle_timeout_seconds: Seconds = 300
    wait_when_starting_seconds: Annotated[int, Field(ge=0, le=3600)] = 0
    tags: Annotated[list[Annotated[str, Field(min_length=1, max_length=40)]], Field(max_length=32)] = []
    auto_start: bool = False
    keep_serving: bool = False
    allow_pickle: bool = False
    sources: Annotated[list[SourceInput], Field(max_length=8)] = []
    placement: PlacementInput | None = None
    placements: Annotated[list[PlacementInput], Field(max_length=64)] = []
    placement_generation: int | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names under which ``/v1`` would serve it."""
        return tuple(self.served_names) or (self.id,)

    @model_validator(mode="after")
    def _names_once(self) -> Self:
        if len(set(self.served_names)) != len(self.served_names):
            raise _problem("served_name_duplicate", "Each served name can be listed once.")
        if both := sorted(set(self.env) & set(self.secret_env)):
            raise _problem("env_name_duplicate", f"{', '.join(both)} cannot be both plain and secret.")
        if any("\0" in secret.get_secret_value() for secret in self.secret_env.values() if secret):
            raise _problem("text_invalid", "A secret value cannot hold a NUL character.")
        if self.placement is not None and self.placements:
            raise _problem("placement_twice", "Give one placement, or the placements of one replica, and not both.")
        return self

    @model_validator(mode="after")
    def _engine_fits(self) -> Self:
        if self.delivery == "process" and (self.image or self.image_digest):
            raise _problem("image_without_container", "An image is for delivery by container; clear it.")
        if self.image_digest and not self.image:
            raise _problem("image_required", "A digest pins an image of the model's own; name that image.")
        if self.runtime != "sim" and not self.sources:
            raise _problem("source_required", f"{self.runtime} needs weights; give a source.")
        if self.runtime == "llama.cpp" and any(s.file and not s.file.endswith(".gguf") for s in self.sources):
            raise _problem("file_not_gguf", "llama.cpp reads GGUF files; give a file that ends in .gguf.")
        if names := flags.refused(self.runtime, self.args):
            raise _problem("argument_managed", f"Mirbad sets {', '.join(names)} itself; take it out of the arguments.")
        if not self.allow_pickle and flags.runs_code(self.runtime, self.args):
            raise _problem(
                "code_refused",
                "--trust-remote-code runs Python that comes with the weights; remove it, or allow pickles on purpose.",
            )
        return self


def parse(data: Mapping[str, Any]) -> ModelInput:
    """`data` (JSON values, camelCase or snake_case) as a ModelInput. Raises InvalidRequest with every problem."""
    try:
        return ModelInput.model_validate(dict(data))
    except ValidationError as error:
        problems = [_told(item) for item in error.errors(include_url=False, include_input=False)]
    raise InvalidRequest("The model cannot be saved: " + problems[0]["message"], problems=problems)


_CODES = {"missing": "required", "extra_forbidden": "unknown_field"}


def _told(item: ErrorDetails) -> dict[str, str]:
    context = item.get("ctx", {})
    field = ".".join(str(part) for part in item["loc"] if part != "[key]")
    code = str(context["rule"]) if item["type"] == "mirbad_rule" else _CODES.get(item["type"], "invalid")
    message = item["msg"] if item["type"] == "mirbad_rule" or not field else f"{field}: {item['msg']}"
    problem = {"code": code, "message": message}
    return {**problem, "field": field} if field else problem
