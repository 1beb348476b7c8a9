"""What the surfaces share: the websocket of the pages: a consumer that passes on hints of change."""
