import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("models_app", "0004_placement_replicas"),
    ]

    operations = [
        migrations.CreateModel(
            name="RunningIntent",
            fields=[
                (
                    "placement",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="intent",
                        serialize=False,
                        to="models_app.placement",
                    ),
                ),
                ("node_uid", models.CharField(max_length=40)),
                ("boot_id", models.CharField(blank=True, default="", max_length=64)),
                (
                    "cause",
                    models.CharField(
                        choices=[("seen", "seen"), ("asked", "asked"), ("autostart", "autostart")], max_length=12
                    ),
                ),
                ("since", models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name="StrayInstance",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("node_id_text", models.CharField(max_length=40)),
                ("instance_id", models.CharField(max_length=80)),
                ("model_id_text", models.CharField(max_length=64)),
                ("operation_id_text", models.CharField(blank=True, default="", max_length=160)),
                ("state", models.CharField(max_length=12)),
                ("boot_id", models.CharField(max_length=64)),
                ("seq", models.BigIntegerField()),
                ("since", models.DateTimeField(auto_now_add=True)),
            ],
            options={
                "ordering": ("node_id_text", "instance_id"),
                "constraints": [
                    models.UniqueConstraint(fields=("node_id_text", "instance_id"), name="stray_once_per_node")
                ],
            },
        ),
    ]
