"""Programs that call `/v1` as people's own programs do: one file a language, with the same cases."""
