"""The input of a model definition, with every rule of its fields. Rules across rows are in `writes`."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails, PydanticCustomError

from agent.common import engine_flags
from agent.common.engine_settings.check import NOTHING_MORE, Allowed, Refused, refused_args, refused_env
from agent.common.formats import gguf_names
from mirbad.kernel.errors import InvalidRequest
from mirbad.kernel.ids import is_model_id
from models_app.models.definition import FIRST_BYTE_SECONDS

_SERVED_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._:@+-]|/(?!/|\Z)){0,127}")
_IMAGE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._:/-]){0,254}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def _problem(code: str, message: str) -> PydanticCustomError:
    # Braces in the message would be parsed as a template.
    return PydanticCustomError("mirbad_rule", "{message}", {"rule": code, "message": message})


def _model_id(value: str) -> str:
    if not is_model_id(value):
        raise _problem(
            "id_invalid", "Use 1-64 of a-z, 0-9, '.', '_' and '-', starting with a letter or digit; no slash."
        )
    return value


def _served_name(value: str) -> str:
    if not _SERVED_NAME.fullmatch(value):
        raise _problem(
            "served_name_invalid",
            "A served name has 1-128 letters, digits or . _ : @ + - / and starts with a letter or digit.",
        )
    return value


def _image(value: str) -> str:
    if value and "@" in value:
        raise _problem("image_has_digest", "Put the digest in imageDigest, not after the image's name.")
    if value and not _IMAGE.fullmatch(value):
        raise _problem("image_invalid", "Enter an image as registry/repository[:tag].")
    return value


def _digest(value: str) -> str:
    if value and not _DIGEST.fullmatch(value):
        raise _problem("image_digest_invalid", "Enter the digest as sha256: and 64 lower-case hex digits.")
    return value


def _relative(value: str) -> str:
    parts = value.split("/")
    if value and ("\\" in value or "\0" in value or any(part in ("", ".", "..") for part in parts)):
        raise _problem("path_invalid", "Enter a path below the models root: relative and without '..'.")
    return value


def _text(value: str) -> str:
    if "\0" in value:
        raise _problem("text_invalid", "A NUL character cannot be passed to an engine.")
    return value


Text = Annotated[str, Field(max_length=8192), AfterValidator(_text)]
EnvName = Annotated[str, Field(max_length=200)]
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
    """The source of weights. `file` names a GGUF in the folder, `projector` the one that reads pictures or sound.

    Without a `projector` the one that belongs to the GGUF is used; "none" is no projector.
    """

    kind: Literal["folder", "huggingface"] = "folder"
    folder: Annotated[str, Field(max_length=255), AfterValidator(_relative)] = ""
    file: RelativePath = ""
    projector: RelativePath = ""
    repository: Annotated[str, Field(max_length=255, pattern=r"^$|^[A-Za-z0-9._-]+/[A-Za-z0-9._-]+$")] = ""
    revision: Annotated[str, Field(max_length=80, pattern=r"^[A-Za-z0-9._/-]*$")] = ""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if not self.folder:
            raise _problem("folder_required", "Enter the weights folder below the node's models root.")
        if self.kind == "huggingface" and not self.repository:
            raise _problem("repository_required", "Enter the Hugging Face repository as owner/name.")
        return self


class PlacementInput(_Input):
    """The node, and on a node whose GPUs have memory of their own, the GPUs."""

    node_id: Annotated[str, Field(min_length=1, max_length=40)]
    gpu_uuids: Annotated[list[Annotated[str, Field(min_length=1, max_length=80)]], Field(max_length=64)] = []


class ModelInput(_Input):
    """A whole model definition, as it is created or saved.

    `secret_env` maps a name to its value, or to None to keep the stored value. A field that was not sent has its
    default, except `placement`: not sent leaves it unchanged, None clears it. `placement_generation` is the one that
    the sender read, and guards a change of GPUs. `placements` is for a new model that runs on several nodes as one,
    rank 0 first.
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
    first_byte_timeout_seconds: Seconds = FIRST_BYTE_SECONDS
    idle_timeout_seconds: Seconds = 300
    wait_when_starting_seconds: Annotated[int, Field(ge=0, le=3600)] = 0
    tags: Annotated[list[Annotated[str, Field(min_length=1, max_length=40)]], Field(max_length=32)] = []
    auto_start: bool = False
    restart_policy: Literal["on-failure", "never"] = "on-failure"
    keep_serving: bool = False
    allow_pickle: bool = False
    sources: Annotated[list[SourceInput], Field(max_length=8)] = []
    placement: PlacementInput | None = None
    placements: Annotated[list[PlacementInput], Field(max_length=64)] = []
    placement_generation: int | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names under which ``/v1`` would serve it."""
        return tuple(self.served_names) or (self.id,)

    @model_validator(mode="after")
    def _names_once(self) -> Self:
        if len(set(self.served_names)) != len(self.served_names):
            raise _problem("served_name_duplicate", "List each served name once.")
        if both := sorted(set(self.env) & set(self.secret_env)):
            raise _problem("env_name_duplicate", f"{', '.join(both)} cannot be both plain and secret.")
        if any("\0" in secret.get_secret_value() for secret in self.secret_env.values() if secret):
            raise _problem("text_invalid", "A secret value cannot contain a NUL character.")
        if self.placement is not None and self.placements:
            raise _problem("placement_twice", "Send either placement or placements, not both.")
        return self

    @model_validator(mode="after")
    def _engine_fits(self) -> Self:
        if self.delivery == "process" and (self.image or self.image_digest):
            raise _problem("image_without_container", "Only container delivery uses an image; clear it.")
        if self.image_digest and not self.image:
            raise _problem("image_required", "A digest needs the model's own image; enter it.")
        if self.runtime != "sim" and not self.sources:
            raise _problem("source_required", f"{self.runtime} needs weights. Choose weights to see where this fits.")
        if self.runtime == "llama.cpp":
            _require_gguf(self.sources)
        if not self.allow_pickle and engine_flags.runs_code(self.runtime, self.args):
            raise _problem(
                "code_refused",
                "--trust-remote-code runs Python that comes with the weights; remove it, or allow pickles on purpose.",
            )
        return self

    @model_validator(mode="after")
    def _settings_allowed(self, info: ValidationInfo) -> Self:
        secrets = {name: None if value is None else value.get_secret_value() for name, value in self.secret_env.items()}
        refused = refused_settings(self.runtime, self.args, self.env, secrets)
        if refused and info.context is not None:
            refused = refused_settings(self.runtime, self.args, self.env, secrets, info.context())
        if refused:
            problems = [{"code": one.code, "message": one.message, "field": one.field} for one in refused]
            raise PydanticCustomError(
                "mirbad_rules", "{message}", {"message": refused[0].message, "problems": problems}
            )
        return self


def refused_settings(
    runtime: str,
    args: Sequence[str],
    env: Mapping[str, str],
    secret_env: Mapping[str, str | None],
    allowed: Allowed = NOTHING_MORE,
) -> tuple[Refused, ...]:
    """Return the arguments and variables that a model on `runtime` may not have; a secret None is not judged."""
    return (
        *refused_args(runtime, args, allowed),
        *refused_env(runtime, env, allowed),
        *refused_env(runtime, secret_env, allowed, field="secretEnv"),
    )


def _require_gguf(sources: Sequence[SourceInput]) -> None:
    for source in sources:
        projector = "" if source.projector == gguf_names.NO_PROJECTOR else source.projector
        if any(name and not gguf_names.is_gguf(name) for name in (source.file, projector)):
            raise _problem("file_not_gguf", "llama.cpp reads GGUF files; choose a .gguf file.")
        part = gguf_names.part_of(source.file)
        if part is not None and part.number != 1:
            raise _problem("file_not_first", f"This is part {part.number} of {part.total}; choose the first part.")
        if gguf_names.is_projector(source.file):
            raise _problem("file_not_model", "This file is a projector; choose the model that it belongs to.")


def parse(data: Mapping[str, Any], allowed: Callable[[], Allowed] | None = None) -> ModelInput:
    """Parse `data` (JSON values, camelCase or snake_case). Raises InvalidRequest with every problem.

    `allowed` returns settings that owners of machines allow beyond the common list; it is called only if that decides.
    """
    try:
        return ModelInput.model_validate(dict(data), context=allowed)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        problems = [problem for item in found for problem in _problems_of(item)]
    raise InvalidRequest("The model cannot be saved: " + problems[0]["message"], problems=problems)


_CODES = {"missing": "required", "extra_forbidden": "unknown_field"}


def _problems_of(item: ErrorDetails) -> list[dict[str, str]]:
    if item["type"] == "mirbad_rules":
        return list(item["ctx"]["problems"])
    return [_problem_of(item)]


def _problem_of(item: ErrorDetails) -> dict[str, str]:
    context = item.get("ctx", {})
    field = ".".join(str(part) for part in item["loc"] if part != "[key]")
    code = str(context["rule"]) if item["type"] == "mirbad_rule" else _CODES.get(item["type"], "invalid")
    message = item["msg"] if item["type"] == "mirbad_rule" or not field else f"{field}: {item['msg']}"
    problem = {"code": code, "message": message}
    return {**problem, "field": field} if field else problem
