"""The kinds of operations that are put through every fault, as `scenarios` spells them out; no Django in here."""

NAMES = (
    "launch",
    "restart",
    "stop",
    "sweep",
    "move, handed over",
    "move, stopped first",
    "unplace",
    "evacuate",
    "revoke",
    "rotate-cert",
    "takeover",
    "download",
    "ca-rotation",
    "backup",
    "backup-delete",
    "restore",
)
