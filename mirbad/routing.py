"""The websocket routes. `mirbad.asgi` puts origin check and session around them; the consumer asks who may look."""

from django.urls import path

from mirbad.live.consumers import LiveConsumer

websocket_urlpatterns = [path("live", LiveConsumer.as_asgi())]
