"""Engines without a placement are called orphans: the table and its constraint take that name."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("models_app", "0006_known_shapes")]

    operations = [
        migrations.RemoveConstraint(model_name="strayinstance", name="stray_once_per_node"),
        migrations.RenameModel(old_name="StrayInstance", new_name="OrphanInstance"),
        migrations.AddConstraint(
            model_name="orphaninstance",
            constraint=models.UniqueConstraint(fields=("node_id_text", "instance_id"), name="orphan_once_per_node"),
        ),
    ]
