"""The websocket of the pages: a consumer that passes on invalidations."""
