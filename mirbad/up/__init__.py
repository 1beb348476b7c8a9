"""`make up`: one supervisor for all processes of a master and its bootstrap node, and the operator's commands."""
