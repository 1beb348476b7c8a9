"""Survivors that are right to survive: what each changes, and why no test can or should notice."""

EXPLAINED: dict[str, dict[str, str]] = {
    "jobs/ledger.py": {
        '- return list(rows.order_by("next_run_at").values_list("pk", flat=True)[:limit])\n'
        '+ return list(rows.order_by("next_run_at").values_list(flat=True)[:limit])': (
            "without a field, the first column is the key"
        ),
    },
    "agent/common/formats/gguf.py": {
        '- reader.order, version = ">", int.from_bytes(struct.pack("<I", version), "big")\n'
        '+ reader.order, version = ">", int.from_bytes(struct.pack("<I", version), )': "big is the default",
        '- form = _BLOCKS.get(reader.number("I"))\n+ form = _BLOCKS.get(reader.number("i"))': (
            "a type with its highest bit set is as unknown as a negative one"
        ),
    },
    "models_app/gateway/core.py": {
        '- return "*" in origins or origin.decode("latin-1").lower() in origins\n'
        '+ return "*" in origins or origin.decode("LATIN-1").lower() in origins': "names of codecs have no case",
        '- raise errors.unknown_encoding(value.decode("latin-1"))\n'
        '+ raise errors.unknown_encoding(value.decode("LATIN-1"))': "names of codecs have no case",
    },
    "models_app/gateway/usage.py": {
        "- self._skipping = False\n+ self._skipping = None": "None is as false as False",
        "- position = text.rfind(_MARK, 0, position)\n+ position = text.rfind(_MARK, None, position)": (
            "None is the start, too"
        ),
    },
    "models_app/placement/planner.py": {
        "- def __call__(self, cards: int, *, shares_memory: bool = False) -> Estimate:\n"
        "+ def __call__(self, cards: int, *, shares_memory: bool = True) -> Estimate:": "a Protocol never runs",
        "- gpus = tuple(card.uuid for card in machine.cards[:1]) if _wants_cards(request, machine) else ()\n"
        "+ gpus = tuple(card.uuid for card in machine.cards[:2]) if _wants_cards(request, machine) else ()": (
            "problems of the GPUs themselves are left out here"
        ),
        '- image, digest = machine.images.get(request.runtime, ("", ""))\n'
        '+ image, digest = machine.images.get(request.runtime, ("", "XXXX"))': (
            "without an image its digest is not looked at"
        ),
        "- return (True, -(usable or 0))  # behind every card that has enough\n"
        "+ return (True, -(usable or 1))  # behind every card that has enough": "no card is better by one byte",
        '- worst: Rejection | None = None\n+ worst: Rejection | None = ""': (
            "it is replaced before it is read: there is a kind of card, and one card of it is tried"
        ),
    },
    "nodes/enrollment/limits.py": {
        "- return str(ipaddress.ip_network((parsed, 64), strict=False))\n"
        "+ return str(ipaddress.ip_network((parsed, 64), strict=None))": "None is as false as False",
        "- self._peers.popitem(last=False)\n+ self._peers.popitem(last=None)": "None is as false as False",
    },
    "nodes/enrollment/join.py": {
        "- NodePin.objects.filter(node=node).exclude(slot=slot).delete()\n"
        "+ NodePin.objects.filter(node=node).exclude(slot=None).delete()": (
            "the pin of this slot is written anew right after, every column of it"
        ),
    },
    "nodes/fencing.py": {
        '- changed = MasterIdentity.objects.filter(pk=row["pk"], bound_to=row["bound_to"]).update(\n'
        '+ changed = MasterIdentity.objects.filter(bound_to=row["bound_to"]).update(': (
            "the table has one row, which a constraint holds"
        ),
    },
}
