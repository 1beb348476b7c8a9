"""The files of models: repositories of the hub, folders of a node, and a catalog of known models."""
