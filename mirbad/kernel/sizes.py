"""Sizes in memory and on disk as a person reads them. Pure."""

UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size(value: float) -> str:
    """Return bytes in binary units, three digits at most: ``145 MiB``, ``23.6 GiB``, ``43.8 TiB``."""
    amount = float(value)
    for unit in UNITS:
        if abs(amount) < 1000 or unit == UNITS[-1]:
            digits = 0 if unit == "B" or amount >= 100 or amount == int(amount) else 1
            return f"{amount:.{digits}f} {unit}"
        amount /= 1024
    raise AssertionError("the last unit takes everything")
