"""What models are made of: repositories of a hub, folders of a node, and a catalog of known ones."""
