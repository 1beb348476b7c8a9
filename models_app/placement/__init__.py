"""Where models run: the rules (`feasible`, pure) and the one that writes (`apply`)."""
