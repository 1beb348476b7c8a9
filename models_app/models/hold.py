"""Locks that keep a model from being started, stopped or changed."""

from django.db import models

from models_app.models.definition import ModelDefinition


class Hold(models.Model):
    """A hold; at most one for each model. `words` complete the sentence "… holds it"."""

    model = models.OneToOneField(ModelDefinition, on_delete=models.CASCADE, primary_key=True, related_name="hold")
    holder_kind = models.CharField(max_length=12)
    holder_id = models.CharField(max_length=120)
    words = models.CharField(max_length=200)
    since = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"{self.model_id}: {self.words}"
