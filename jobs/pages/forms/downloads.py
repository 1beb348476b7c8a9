"""The form of a download."""

from django import forms

from models_app.artifacts.download_request import DownloadRequest
from nodes.models import Node

_CODE = {"spellcheck": "false", "autocapitalize": "none", "autocomplete": "off"}


class DownloadForm(forms.Form):
    """A set of files, and the node to download it to."""

    node = forms.ChoiceField(label="Node")
    repository = forms.RegexField(
        r"^[A-Za-z0-9._-]{1,120}/[A-Za-z0-9._-]{1,120}$",
        label="Repository",
        max_length=255,
        help_text="owner/name on Hugging Face.",
        error_messages={"invalid": "Use the form owner/name."},
        widget=forms.TextInput(attrs={**_CODE, "placeholder": "Qwen/Qwen2.5-0.5B-Instruct"}),
    )
    revision = forms.RegexField(
        r"^[A-Za-z0-9._/-]*$",
        label="Revision",
        max_length=80,
        required=False,
        help_text="Branch, tag or commit. Default: main.",
        widget=forms.TextInput(attrs=_CODE),
    )
    folder = forms.RegexField(
        r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        label="Folder",
        max_length=128,
        required=False,
        help_text="Default: the name of the repository.",
        widget=forms.TextInput(attrs=_CODE),
    )
    token = forms.CharField(
        label="Hugging Face token",
        max_length=500,
        required=False,
        help_text="For a gated or private repository. Sent to the node's memory only, never stored.",
        widget=forms.PasswordInput(attrs={"autocomplete": "off"}),
    )
    allow_pickle = forms.BooleanField(
        label="Allow Python pickles",
        required=False,
        help_text="Pickle files can execute code when loaded.",
    )

    def __init__(self, data: object = None, *, initial: dict[str, str] | None = None) -> None:
        super().__init__(data, initial=initial)  # type: ignore[arg-type] # a QueryDict or None
        nodes = [(node.pk, node.name) for node in Node.objects.approved()]
        self.fields["node"].choices = nodes  # type: ignore[attr-defined]

    def request(self, files: list[str]) -> DownloadRequest:
        """Return the request; only of a valid form."""
        sent = self.cleaned_data
        return DownloadRequest(sent["repository"], sent["revision"], tuple(files), sent["folder"], sent["allow_pickle"])
