"""Finds the model in a multipart form as its bytes come by, without keeping them. Pure."""

import re
from email.message import Message
from typing import Literal

from models_app.gateway import refusals

MODEL_BYTES = 1024
_HEAD_BYTES = 16 * 1024
_BOUNDARY_LENGTH = 70
_NAME = re.compile(rb';\s*name="((?:[^"\\]|\\.)*)"|;\s*name=([^\s;"]+)', re.IGNORECASE)
_FILE = re.compile(rb";\s*filename\*?=", re.IGNORECASE)


def boundary(content_type: bytes) -> bytes | None:
    """The boundary of a ``multipart/form-data`` body, None for any other type. Raises Refusal (400) without one."""
    if not content_type[:19].lower().startswith(b"multipart/form-data"):
        return None
    head = Message()
    head["content-type"] = content_type.decode("latin-1")
    found = head.get_boundary()
    if not found or len(found) > _BOUNDARY_LENGTH or not found.isascii() or not found.isprintable():
        raise refusals.bad_request("The form's Content-Type names no usable boundary.", code="invalid_form")
    return found.encode()


class FormPeek:
    """Fed with a form's bytes in any pieces; `model` is set as soon as its field has ended.

    Memory stays small: of files nothing is kept but what may be the beginning of a boundary.
    """

    def __init__(self, boundary: bytes) -> None:
        self._mark = b"\r\n--" + boundary
        self._rest = b"\r\n"  # the first boundary has no line before it
        self._state: Literal["preamble", "after mark", "head", "skip", "model", "end"] = "preamble"
        self.model: str | None = None

    @property
    def ended(self) -> bool:
        """Whether the closing boundary was seen."""
        return self._state == "end"

    def feed(self, data: bytes) -> None:
        """Take the next bytes. Raises Refusal (400) for what is no form, an odd model field, or two of them."""
        self._rest += data
        while self._step():
            pass

    def finish(self) -> None:
        """The body is over. Raises Refusal (400) when the form is not, or has no model."""
        if not self.ended:
            raise _bad("The form ends before its closing boundary.")
        if self.model is None:
            raise refusals.bad_request("Name a model in the form field 'model'.", "model", "model_required")

    def _step(self) -> bool:
        """Read one thing; whether there may be another in what is left."""
        if self._state == "after mark":
            return self._after_mark()
        if self._state == "head":
            return self._head()
        if self._state == "end":
            self._rest = b""
            return False
        return self._body()

    def _body(self) -> bool:
        at = self._rest.find(self._mark)
        if self._state == "model":
            if at < 0:
                if len(self._rest) > MODEL_BYTES + len(self._mark):
                    raise _bad("The form field 'model' is too long.", "model")
                return False
            self._take_model(self._rest[:at])
        elif at < 0:
            self._rest = self._rest[-(len(self._mark) - 1) :]
            return False
        self._rest = self._rest[at + len(self._mark) :]
        self._state = "after mark"
        return True

    def _after_mark(self) -> bool:
        if len(self._rest) < 2:
            return False
        if self._rest.startswith(b"--"):
            self._state = "end"
        elif self._rest.startswith(b"\r\n"):
            self._state = "head"
            # The line end stays: a head without headers is an empty line at once.
        else:
            raise _bad("A boundary of the form is not followed by a line end.")
        return True

    def _head(self) -> bool:
        end = self._rest.find(b"\r\n\r\n")
        if end < 0:
            if len(self._rest) > _HEAD_BYTES:
                raise _bad("A part of the form has too long a head.")
            return False
        name = _field_name(self._rest[2:end])
        self._rest = self._rest[end + 4 :]
        # An empty value is ended by the boundary's own line end.
        self._state = "model" if name == b"model" else "skip"
        return True

    def _take_model(self, value: bytes) -> None:
        if self.model is not None:
            raise _bad("The form has two fields 'model'.", "model")
        try:
            self.model = value.decode()
        except UnicodeDecodeError:
            raise _bad("The form field 'model' is not UTF-8.", "model") from None
        if not self.model or len(value) > MODEL_BYTES:
            raise _bad("The form field 'model' must be a model's name.", "model")


def _field_name(head: bytes) -> bytes | None:
    """The name of the field whose part has this `head`; None for a file."""
    for line in head.split(b"\r\n"):
        label, _, value = line.partition(b":")
        if label.strip().lower() == b"content-disposition":
            found = _NAME.search(value)
            if found is None or _FILE.search(value) is not None:
                return None
            return found.group(1) if found.group(1) is not None else found.group(2)
    raise _bad("A part of the form has no Content-Disposition.")


def _bad(message: str, param: str | None = None) -> refusals.Refusal:
    return refusals.bad_request(message, param, "invalid_form")
