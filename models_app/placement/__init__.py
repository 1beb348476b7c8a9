"""Decisions where models run: the rules (`feasible`, `planner`, pure) and the one writer (`apply`)."""
