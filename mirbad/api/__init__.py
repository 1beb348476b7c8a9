"""What the surfaces share: problem+json, parsing, pagination and health of the admin API."""
