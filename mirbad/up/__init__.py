"""`make up`: one supervisor for all processes of a master and its own node, and the commands of an operator's shell."""
