"""The forms of a configuration import: the upload, and the choices of its preview."""

from collections.abc import Iterator

from django import forms
from django.http import QueryDict

from jobs.backup.importing.choices import ImportChoices, ImportOptions, TargetChoice

UNPLACED = "unplaced"
"""Typed in place of a node. A node of that name is chosen for the machine that the models were on."""

OF_NODE, OF_MODEL = "node:", "model:"
_LONGEST = 100


class ImportUploadForm(forms.Form):
    """A backup, and the passphrase of its secrets."""

    file = forms.FileField(
        label="Backup file",
        allow_empty_file=True,
        help_text="From the page Backup, a destination, or manage.py backup.",
    )
    passphrase = forms.CharField(
        label="Passphrase",
        max_length=1000,
        required=False,
        strip=False,
        help_text="Without it, API keys and the values of secret variables are not imported.",
        widget=forms.PasswordInput(attrs={"autocomplete": "off"}),
    )


def choices_of(sent: QueryDict) -> ImportChoices:
    """Return the choices of a form that was sent. Every name and value is checked by the plan."""
    return ImportChoices(
        targets=tuple(_targets(sent)),
        options=ImportOptions(
            start_models="start_models" in sent,
            node_settings="node_settings" in sent,
            start_times="start_times" in sent,
            destinations="destinations" in sent,
        ),
        others_unplaced="others_unplaced" in sent,
    )


def _targets(sent: QueryDict) -> Iterator[TargetChoice]:
    for name in sent:
        value = sent.get(name, "").strip()[:_LONGEST]
        if not value:
            continue
        node_id, unplaced = ("", True) if value == UNPLACED else (value, False)
        if name.startswith(OF_NODE):
            yield TargetChoice(backup_node_id=name.removeprefix(OF_NODE), node_id=node_id, unplaced=unplaced)
        elif name.startswith(OF_MODEL):
            yield TargetChoice(model_id=name.removeprefix(OF_MODEL), node_id=node_id, unplaced=unplaced)
