"""Checks that a checkpoint belongs to a query: compares the fields that must never change."""

from __future__ import annotations

from headgate.core.errors import CheckpointError


def refuse_another(old: object, new: object, where: str) -> None:
    """Refuse a query that differs from the checkpoint's, naming the field that does."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            refuse_another(old.get(key), new.get(key), f"{where}.{key}" if where else key)
    elif old != new:
        field = {"groups": "key groups"}.get(where.rpartition(".")[2], where)
        shown = (_shown(field, old), _shown(field, new))
        msg = f"checkpoint has {shown[0]}, this query {shown[1]}; {field} cannot change. "
        raise CheckpointError(msg + "Use a new checkpoint.")


def _shown(field: str, value: object) -> str:
    if field == "key groups":
        return f"{value} {field}"
    if isinstance(value, list):
        value = f"[{', '.join(map(str, value))}]"
    return f"{field} {value}"
