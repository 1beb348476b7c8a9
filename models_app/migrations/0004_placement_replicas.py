"""Placements as shards of replicas. Each placement that stands already is a replica of its own."""

from django.apps.registry import Apps
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

import mirbad.kernel.ids

_REPLICA = "The same for every shard of one replica."


def one_replica_each(apps: Apps, _editor: BaseDatabaseSchemaEditor) -> None:
    """A default is worked out once for all rows of a table; here each row needs its own."""
    apps.get_model("models_app", "Placement").objects.update(replica=models.F("id"))


class Migration(migrations.Migration):
    dependencies = [
        ("models_app", "0003_allow_pickle"),
    ]

    operations = [
        migrations.AddField("placement", "replica", models.UUIDField(null=True, help_text=_REPLICA)),
        migrations.AddField(
            "placement",
            "routed",
            models.BooleanField(default=True, help_text="Whether the gateway sends requests there."),
        ),
        migrations.AddField(
            "placement",
            "shard",
            models.PositiveSmallIntegerField(default=0, help_text="Its rank in the replica, from 0."),
        ),
        migrations.AddField(
            "placement",
            "shards",
            models.PositiveSmallIntegerField(default=1, help_text="How many the replica must have."),
        ),
        migrations.RunPython(one_replica_each, migrations.RunPython.noop),
        migrations.AlterField(
            "placement",
            "replica",
            models.UUIDField(db_index=True, default=mirbad.kernel.ids.new_uid, help_text=_REPLICA),
        ),
        migrations.AddConstraint(
            "placement", models.UniqueConstraint(fields=("replica", "shard"), name="placement_once_per_shard")
        ),
        migrations.AddConstraint(
            "placement",
            models.CheckConstraint(
                condition=models.Q(shard__lt=models.F("shards")), name="placement_shard_within_its_replica"
            ),
        ),
    ]
