"""A default image for llama.cpp beside the one for vLLM."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("nodes", "0005_telemetry")]

    operations = [
        migrations.AddField(
            model_name="node",
            name="default_llama_image",
            field=models.CharField(blank=True, default="", max_length=255),
        ),
        migrations.AddField(
            model_name="node",
            name="default_llama_image_digest",
            field=models.CharField(blank=True, default="", max_length=80),
        ),
        migrations.AlterField(
            model_name="node",
            name="default_image",
            field=models.CharField(blank=True, default="", help_text="For vLLM.", max_length=255),
        ),
    ]
