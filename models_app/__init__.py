"""Models: definitions, placements, and the ``/v1`` gateway that serves them."""
