"""View-models of the nodes pages by noun. Every list costs a constant number of queries."""
