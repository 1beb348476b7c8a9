from django.db import migrations, models


def raise_the_default(apps, schema_editor):
    """Client libraries wait ten minutes; nobody who left the default of five chose to end before them."""
    apps.get_model("models_app", "ModelDefinition").objects.filter(first_byte_timeout_seconds=300).update(
        first_byte_timeout_seconds=600
    )


class Migration(migrations.Migration):

    dependencies = [
        ('models_app', '0010_engine_exits'),
    ]

    operations = [
        migrations.AlterField(
            model_name='modeldefinition',
            name='first_byte_timeout_seconds',
            field=models.PositiveIntegerField(default=600),
        ),
        migrations.RunPython(raise_the_default, migrations.RunPython.noop),
    ]
