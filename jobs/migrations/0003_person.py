from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('jobs', '0002_concurrency_group'),
    ]

    operations = [
        migrations.AddField(
            model_name='operation',
            name='address',
            field=models.CharField(blank=True, default='', help_text='Address that the request came from.', max_length=64),
        ),
        migrations.AddField(
            model_name='operation',
            name='person',
            field=models.CharField(blank=True, default='', help_text='Name of the user or of the token.', max_length=150),
        ),
        migrations.AddField(
            model_name='operation',
            name='role',
            field=models.CharField(blank=True, default='', max_length=10),
        ),
    ]
