from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('jobs', '0001_initial'),
    ]

    operations = [
        migrations.RemoveConstraint(
            model_name='operation',
            name='one_open_operation_per_lane_and_target',
        ),
        migrations.RenameField(
            model_name='operation',
            old_name='lane',
            new_name='concurrency_group',
        ),
        migrations.AddConstraint(
            model_name='operation',
            constraint=models.UniqueConstraint(
                condition=models.Q(('finished_at__isnull', True)),
                fields=('concurrency_group', 'target_kind', 'target_id'),
                name='one_open_operation_per_group_and_target',
            ),
        ),
    ]
