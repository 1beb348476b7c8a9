from django.db import migrations, models
import django.db.models.deletion


class Migration(migrations.Migration):

    dependencies = [
        ('nodes', '0008_refused_instance'),
    ]

    operations = [
        migrations.AddField(
            model_name='masteridentity',
            name='stood_down_at',
            field=models.DateTimeField(blank=True, help_text='Fenced by an owner since then; only an owner takes over again.', null=True),
        ),
        migrations.CreateModel(
            name='NodeWitness',
            fields=[
                ('node', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='witness', serialize=False, to='nodes.node')),
                ('view', models.JSONField(default=dict, help_text='The last `WitnessView`, as on the wire.')),
                ('agrees', models.BooleanField(default=True, help_text='The node holds a head of the present log.')),
                ('at', models.DateTimeField()),
            ],
            options={
                'verbose_name_plural': 'node witnesses',
            },
        ),
    ]
