"""Forms of a new backup and of a destination. What is secret is never rendered back."""

from typing import Any

from django import forms

from jobs.models import BackupDestination
from jobs.requests.backup_destinations import DestinationInput

_CODE = {"spellcheck": "false", "autocapitalize": "none", "autocomplete": "off"}
_HIDDEN = {"autocomplete": "new-password"}


def _secret(label: str, help_text: str = "", size: int = 1000) -> forms.CharField:
    widget = forms.PasswordInput(attrs=_HIDDEN)
    return forms.CharField(
        label=label, help_text=help_text, max_length=size, required=False, strip=False, widget=widget
    )


def _code(label: str, help_text: str = "", *, required: bool = True, placeholder: str = "") -> forms.CharField:
    widget = forms.TextInput(attrs={**_CODE, "placeholder": placeholder})
    return forms.CharField(label=label, help_text=help_text, max_length=400, required=required, widget=widget)


def _number(label: str, help_text: str) -> forms.IntegerField:
    return forms.IntegerField(label=label, help_text=help_text, min_value=1, max_value=10_000, required=False)


class _TwicePassphrase(forms.Form):
    def clean(self) -> dict[str, Any]:
        """Refuse a passphrase that was typed differently the second time."""
        sent = super().clean() or {}
        if sent.get("passphrase", "") != sent.get("again", ""):
            self.add_error("again", "The passphrases do not match. Enter both again.")
        return sent


class NewBackupForm(_TwicePassphrase):
    """A backup that is made now."""

    destination = forms.TypedChoiceField(label="Destination", coerce=int, empty_value=None, required=False)
    with_secrets = forms.BooleanField(
        label="With secrets",
        required=False,
        initial=True,
        help_text="Keys, people, secret variables, pins, master identity and CA. Without them it rebuilds no master.",
    )
    passphrase = _secret(
        "Passphrase", "Opens the secrets; without it nobody can. It is forgotten once the backup is made."
    )
    again = _secret("Passphrase again")

    def __init__(self, data: object = None, *, initial: dict[str, Any] | None = None) -> None:
        super().__init__(data, initial=initial)  # type: ignore[arg-type] # a QueryDict or None
        rows = [(row.pk, row.name, row.passphrase_sealed is not None) for row in BackupDestination.objects.all()]
        choices = [("", "This master alone"), *((pk, name) for pk, name, _ in rows)]
        self.fields["destination"].choices = choices  # type: ignore[attr-defined]
        if kept := [name for _, name, sealed in rows if sealed]:
            self.fields["passphrase"].help_text += f" Default for {', '.join(kept)}: the one that is kept for it."


_BY_KIND: dict[str, dict[str, forms.CharField]] = {
    "folder": {
        "path": _code("Folder", "Absolute path on the master's machine; it must exist.", placeholder="/mnt/backup")
    },
    "smb": {
        "host": _code("Server", "Host name or address."),
        "share": _code("Share", "Its name, without slashes."),
        "folder": _code("Folder in the share", "It must exist. Default: the share itself.", required=False),
        "username": _code("User name"),
        "domain": _code("Domain", required=False),
    },
    "nfs": {
        "host": _code("Server", "Host name or address."),
        "export": _code("Export", "Absolute path on the server.", placeholder="/srv/backup"),
        "folder": _code("Folder in the export", "It must exist. Default: the export itself.", required=False),
    },
    "s3": {
        "endpoint": _code("Endpoint", "Default: Amazon S3.", required=False, placeholder="https://s3.example.org:9000"),
        "region": _code("Region"),
        "bucket": _code("Bucket"),
        "prefix": _code("Folder in the bucket", required=False),
        "accessKeyId": _code("Access key"),
    },
}
_SECRET_OF = {"smb": "Password", "s3": "Secret key"}


class DestinationForm(_TwicePassphrase):
    """A destination of one kind. `row` is the one that is changed, None for a new one."""

    def __init__(self, kind: str, data: object = None, *, row: BackupDestination | None = None) -> None:
        super().__init__(data, initial=_initial(kind, row))  # type: ignore[arg-type] # a QueryDict or None
        self.kind = kind
        stored = row is not None and row.secret_sealed is not None
        self.fields["name"] = forms.CharField(label="Name", max_length=60)
        self.fields |= {name: _copy(field) for name, field in _BY_KIND[kind].items()}
        if kind in _SECRET_OF:
            self.fields["secret"] = _secret(_SECRET_OF[kind], "Stored. Empty keeps it." if stored else "", size=500)
        self.fields["schedule"] = _code(
            "Schedule", "Cron expression in UTC: 30 2 * * * is each day at 02:30. Empty: off.",
            required=False, placeholder="30 2 * * *",
        )  # fmt: skip
        self.fields["warn_after_hours"] = _number("Warn when older than (h)", "Empty: no warning.")
        self.fields["keep_count"] = _number("Keep the last", "Empty: any number. The last good one always stays.")
        self.fields["keep_days"] = _number("Keep for (days)", "Empty: without limit.")
        has = row is not None and row.passphrase_sealed is not None
        self.fields["passphrase"] = _secret(
            "Passphrase of scheduled backups",
            "Stored. Empty keeps it." if has else "Stored sealed. Empty: scheduled backups have no secrets.",
        )
        self.fields["again"] = _secret("Passphrase again")
        if has:
            self.fields["remove_passphrase"] = forms.BooleanField(
                label="Remove the stored passphrase",
                required=False,
                help_text="Scheduled backups then have no secrets.",
            )

    @property
    def groups(self) -> tuple[tuple[str, tuple[forms.BoundField, ...]], ...]:
        """Return the fields below the legends of the page."""
        place = ["name", *_BY_KIND[self.kind], *(["secret"] if "secret" in self.fields else [])]
        sealed = [name for name in ("passphrase", "again", "remove_passphrase") if name in self.fields]
        when = ("Schedule and retention", ("schedule", "warn_after_hours", "keep_count", "keep_days"))
        return tuple(
            (title, tuple(self[name] for name in names))
            for title, names in (("Place", place), when, ("Secrets of scheduled backups", sealed))
        )

    def entered(self) -> DestinationInput:
        """Return the destination; only of a valid form."""
        sent = self.cleaned_data
        passphrase = "" if sent.get("remove_passphrase") else sent["passphrase"] or None
        return DestinationInput(
            name=sent["name"],
            kind=self.kind,
            settings={name: sent[name] for name in _BY_KIND[self.kind]},
            secret=sent.get("secret") or None,
            passphrase=passphrase,
            schedule=sent["schedule"],
            keep_count=sent["keep_count"],
            keep_days=sent["keep_days"],
            warn_after_hours=sent["warn_after_hours"],
        )


def _copy(field: forms.CharField) -> forms.CharField:
    return _code(
        str(field.label), str(field.help_text), required=field.required,
        placeholder=field.widget.attrs.get("placeholder", ""),
    )  # fmt: skip


def _initial(kind: str, row: BackupDestination | None) -> dict[str, Any]:
    if row is None:
        return {"region": "us-east-1", "keep_count": 14, "warn_after_hours": None, "schedule": ""}
    names = ("name", "schedule", "keep_count", "keep_days", "warn_after_hours")
    return {**{name: getattr(row, name) for name in names}, **{name: row.settings.get(name) for name in _BY_KIND[kind]}}
