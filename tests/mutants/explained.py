"""Survivors that are right to survive: what each changes, and why no test can or should notice."""

EXPLAINED: dict[str, dict[str, str]] = {
    "jobs/ledger.py": {
        '- return list(rows.order_by("next_run_at").values_list("pk", flat=True)[:limit])\n'
        '+ return list(rows.order_by("next_run_at").values_list(flat=True)[:limit])': (
            "without a field, the first column is the key"
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
