"""Known shapes of weights."""

from django.db import models


class KnownShape(models.Model):
    """The facts of one set of weights, read from a node's folder, or from the hub by its revision.

    The key is a digest of the content that the facts belong to: repository and commit, or a folder with its files and
    sizes.
    """

    key = models.CharField(primary_key=True, max_length=64)
    subject = models.CharField(max_length=400, help_text="What the facts are of, for a person.")
    facts = models.JSONField(help_text="`FolderShape`, as on the wire.")
    read_at = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return self.subject
