"""Forms of the nodes pages by noun. They parse input; the rules are in `nodes`."""
