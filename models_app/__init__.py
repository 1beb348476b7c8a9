"""Models: what they are, where they run, and the ``/v1`` gateway that serves them."""
