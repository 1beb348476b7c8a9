"""The model field of a multipart form, found while the bytes pass, without storing them. Pure."""

import re
from typing import Literal

from models_app.gateway import errors

MODEL_BYTES = 1024
MAX_PARTS = 1000
"""As many as the form readers of engines accept."""
_HEAD_BYTES = 16 * 1024
_BOUNDARY_LENGTH = 70
_CONTENT_TYPE = re.compile(
    rb"multipart/form-data(?:[ \t]*;[ \t]*charset=[\"A-Za-z0-9-]+)?[ \t]*;[ \t]*"
    rb"boundary=(?:\"([A-Za-z0-9'()+_./:=? -]*[A-Za-z0-9'()+_./:=?-])\"|([A-Za-z0-9'()+_./:=?-]+))[ \t]*;?",
    re.IGNORECASE,
)
_HEADER = re.compile(rb"([A-Za-z0-9-]+):[ \t]*([^\r\n\0]*)")
_CODINGS = (b"binary", b"8bit", b"7bit")
_FIELD = rb"[A-Za-z0-9_.\[\]-]{1,100}"
# Backslashes are escapes to some readers and characters to others; file names of Windows have them.
_DISPOSITION = re.compile(
    rb"form-data[ \t]*;[ \t]*name=(?:\"(%b)\"|(%b))((?:[ \t]*;.*)?)" % (_FIELD, _FIELD), re.IGNORECASE
)
_NAME_AGAIN = re.compile(rb"(?:^|;)[ \t]*name[ \t]*\*?[0-9]*\*?[ \t]*=", re.IGNORECASE)
_FILE = re.compile(rb";[ \t]*filename[ \t]*\*?[0-9]*\*?[ \t]*=", re.IGNORECASE)
_OTHER_CHARSET = re.compile(rb"charset(?![ \t]*=[ \t]*\"?utf-?8\"?[ \t]*(?:;|$))", re.IGNORECASE)


def boundary(content_type: bytes) -> bytes | None:
    """Return the boundary of a ``multipart/form-data`` body, None for other types. Raises GatewayError (400)."""
    if not content_type[:19].lower().startswith(b"multipart/form-data"):
        return None
    found = _CONTENT_TYPE.fullmatch(content_type)
    if found is None or len(found[1] or found[2]) > _BOUNDARY_LENGTH:
        raise _bad("The Content-Type of the form has no valid boundary. Let your HTTP library set the header.")
    return found[1] or found[2]


class FormPeek:
    """An incremental parser of a form, fed with chunks of any size. `model` is set as soon as its field has ended.

    Memory stays small: of files only a possible start of a boundary is kept. Each byte is read once.
    """

    def __init__(self, boundary: bytes) -> None:
        self._dashes = b"--" + boundary
        self._mark = b"\r\n" + self._dashes
        self._rest = b"\r\n"  # the first boundary has no line break before it
        self._at = 0
        self._parts = 0
        self._state: Literal["preamble", "after mark", "head", "skip", "model", "end"] = "preamble"
        self.model: str | None = None

    @property
    def ended(self) -> bool:
        """Return whether the closing boundary has been read."""
        return self._state == "end"

    def feed(self, data: bytes) -> None:
        """Parse the next chunk. Raises GatewayError (400) if the form or its model field is invalid."""
        self._rest, self._at = self._rest + data, 0
        while self._step():
            pass
        self._rest = self._rest[self._at :]

    def finish(self) -> None:
        """End the body. Raises GatewayError (400) if the form is incomplete or has no model."""
        if not self.ended:
            raise _bad("The form ends before its closing boundary. Send it whole.")
        if self.model is None:
            raise errors.bad_request("Set the form field 'model' to the name of a model.", "model", "model_required")

    def _step(self) -> bool:
        """Parse one element. Return whether the remaining bytes may contain another."""
        if self._state == "after mark":
            return self._after_mark()
        if self._state == "head":
            return self._head()
        if self._state == "end":
            if self._rest[self._at :].strip():
                raise _bad("Bytes follow the closing boundary of the form.")
            self._at = len(self._rest)
            return False
        return self._body()

    def _body(self) -> bool:
        dashes = self._rest.find(self._dashes, self._at)
        at = dashes - 2 if dashes >= 0 else -1
        if dashes >= 0 and (at < self._at or not self._rest.startswith(b"\r\n", at)):
            raise _bad("The boundary of the form occurs inside a part. Let your HTTP library choose it.")
        if self._state == "preamble" and not self._mark.startswith(self._rest[: len(self._mark)]):
            raise _bad("The form must begin with its boundary.")
        if self._state == "model":
            if at < 0:
                if len(self._rest) - self._at > MODEL_BYTES + len(self._mark):
                    raise _bad(f"The form field 'model' exceeds {MODEL_BYTES} bytes.", "model")
                return False
            self._take_model(self._rest[self._at : at])
        elif at < 0:
            self._at = max(self._at, len(self._rest) - len(self._mark) + 1)
            return False
        self._at = at + len(self._mark)
        self._state = "after mark"
        return True

    def _after_mark(self) -> bool:
        if len(self._rest) - self._at < 2:
            return False
        if self._rest.startswith(b"--", self._at):
            self._at += 2
            self._state = "end"
        elif self._rest.startswith(b"\r\n", self._at):
            self._state = "head"
            self._parts += 1
            if self._parts > MAX_PARTS:
                raise _bad(f"The form has more than {MAX_PARTS} parts. Send fewer.")
            # The line break stays: a part without headers then is an empty line at once.
        else:
            raise _bad("A boundary of the form is not followed by a line break.")
        return True

    def _head(self) -> bool:
        end = self._rest.find(b"\r\n\r\n", self._at, self._at + _HEAD_BYTES + 4)
        if end < 0:
            if len(self._rest) - self._at > _HEAD_BYTES:
                raise _bad(f"The headers of a form part exceed {_HEAD_BYTES} bytes.")
            return False
        name = _field_name(self._rest[self._at + 2 : end])
        self._at = end + 4
        # An empty value ends with the line break of the boundary.
        self._state = "model" if name == b"model" else "skip"
        return True

    def _take_model(self, value: bytes) -> None:
        if self.model is not None:
            raise _bad("The form has more than one field 'model'. Send one.", "model")
        try:
            self.model = value.decode()
        except UnicodeDecodeError:
            raise _bad("The form field 'model' is not UTF-8.", "model") from None
        if not self.model or len(value) > MODEL_BYTES:
            raise _bad("The form field 'model' must be the name of a model.", "model")


def _field_name(head: bytes) -> bytes | None:
    """Return the field name of the part with this `head`, None for a file.

    Whatever readers of forms read in different ways is refused, so that the engine finds the same field.
    """
    headers: dict[bytes, bytes] = {}
    for line in head.split(b"\r\n"):
        found = _HEADER.fullmatch(line)
        if found is None or found[1].lower() in headers:
            raise _bad("A form part has an invalid or repeated header.")
        headers[found[1].lower()] = found[2]
    if headers.get(b"content-transfer-encoding", b"binary").lower() not in _CODINGS:
        raise _bad("A form part has a Content-Transfer-Encoding. Send its bytes as they are.")
    disposition = _DISPOSITION.fullmatch(headers.get(b"content-disposition", b""))
    if disposition is None:
        raise _bad("A form part has no valid Content-Disposition header with a plain name.")
    quoted, plain, parameters = disposition.groups()
    if _NAME_AGAIN.search(parameters) is not None:
        raise _bad("A form part has more than one name.")
    name: bytes = plain if quoted is None else quoted
    if _FILE.search(parameters) is not None:
        if name == b"model":
            raise _bad("The form field 'model' must be text, not a file.", "model")
        return None
    if name == b"model" and _OTHER_CHARSET.search(headers.get(b"content-type", b"")) is not None:
        raise _bad("The form field 'model' must be UTF-8.", "model")
    return name


def _bad(message: str, param: str | None = None) -> errors.GatewayError:
    return errors.bad_request(message, param, "invalid_form")
