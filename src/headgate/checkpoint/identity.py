"""Checks that a checkpoint belongs to a query: compares the properties that must never change.

A query describes, for each operator, the layout of its state, and the meaning of the state as texts in
the user's words. Both must match the checkpoint. A checkpoint of an earlier release has no meaning: only
its layouts are compared, and it takes the meaning of the query.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from headgate.core.errors import CheckpointError
from headgate.core.input import escaped

MEANING = "meaning"
"""Key of an identity: ``version``, and ``operators``: texts by the operator's id and the field."""

ARGUMENTS, BRANCHES, CONSTANTS = "arguments", "branches of unions", "time zone of constants"
"""Fields added to a meaning after its version was fixed; an older checkpoint lacks them."""

TYPES = "types"
"""Field of an aggregate: types of its keys and results, which an older checkpoint lacks."""

COLUMN = "column "
"""First word of the names of fields with the input of a user's function, one for each column. Only
columns that both meanings have are compared."""

EXACT = "exact"
"""Key of a meaning: more exact texts of the operators for which those under ``operators`` leave something
out; all other operators have the same texts in both forms. Earlier releases did not write this key."""

SOURCES = "sources"
"""Key of a meaning: names of the sources in Spark's order, if they are not all the same."""

CASE = "case"
"""Key of a meaning if names are case-sensitive in the session."""

_NAMES_AROUND = re.compile(r"('(?:[^'\\]|\\.)*')|[^']+")

_LATER = (ARGUMENTS, BRANCHES, CONSTANTS, TYPES)

_REMEDY = "start the query as it was, or use a new checkpointLocation."

_KINDS = ("whole number or time", "floating-point number", "decimal", "text or bytes", "sketch")
"""Names of the kinds of leaves, by the number of a kind."""

_DECIMAL = 2

_NAMES = {
    "keep_us": "time that a key is remembered",
    "key_groups": "key groups",
    "kinds": "types of the keys",
    "mode": "output mode",
    "time": "window",
    "time_mode": "time mode",
}


def refuse_another(old: Mapping[str, Any], new: Mapping[str, Any], location: str) -> None:
    """Refuse a query that is not the checkpoint's, naming the part that differs.

    `old`, `new`: identities of the checkpoint and of the query. `location`: location of the
    checkpoint, for the message. Raises `CheckpointError`.
    """
    meant, means = (_meaning(identity) for identity in (old, new))
    comparable = bool(meant and means) and meant["version"] == means["version"]
    if comparable:
        exact = EXACT in meant and EXACT in means
        texts = [{**part["operators"], **(part[EXACT] if exact else {})} for part in (meant, means)]
        _compare_meanings(texts[0], texts[1], location, case=CASE in means)
        _refuse_another_order(meant.get(SOURCES, []), means.get(SOURCES, []), location)
    for field in sorted((old.keys() | new.keys()) - {MEANING}):
        was, now = old.get(field), new.get(field)
        if field == "operators":
            _compare_layouts(was or {}, now or {}, location, named=not comparable)
        elif field == "stages":
            words = ("stages", "columns of stage")
            _compare_each(words, _stages(was), _stages(now), location)
        else:
            _compare(_NAMES.get(field, field), was, now, location)


def _meaning(identity: Mapping[str, Any]) -> dict[str, Any]:
    meaning: dict[str, Any] = identity.get(MEANING) or {}
    return meaning


def _compare_meanings(
    old: Mapping[str, Any], new: Mapping[str, Any], location: str, *, case: bool
) -> None:
    """Compare texts; `case`: names that differ only in upper and lower case are different."""
    if old.keys() != new.keys():
        _refuse("stateful operators", sorted(old), sorted(new), location)
    for operator in old:
        where = f" of {operator}" if len(old) > 1 else ""
        for field in [*old[operator], *(new[operator].keys() - old[operator].keys())]:
            was, now = old[operator].get(field), new[operator].get(field)
            if field in _LATER and was is None:
                continue
            if field.startswith(COLUMN) and None in (was, now):
                continue
            if was != now and (case or _in_lower_case(was) != _in_lower_case(now)):
                _refuse(f"{field}{where}", *_different(was, now), location)


def _refuse_another_order(old: Sequence[str], new: Sequence[str], location: str) -> None:
    """Refuse sources in another order: Spark keeps their offsets by number."""
    if old != new and sorted(old) == sorted(new):
        _refuse("order of the sources", old, new, location)


def _in_lower_case(value: Any) -> Any:
    """Return texts in lower case, except text between quotes."""
    if isinstance(value, list):
        return [_in_lower_case(part) for part in value]
    return value and _NAMES_AROUND.sub(lambda part: part[1] or part[0].lower(), str(value))


def _different(was: Any, now: Any) -> tuple[Any, Any]:
    """Return only the differing elements if some elements of a list were exchanged; else both values."""
    lists = isinstance(was, list) and isinstance(now, list) and len(was) == len(now)
    pairs = [(a, b) for a, b in zip(was, now, strict=True) if a != b] if lists else []
    if not pairs or sorted(a for a, _ in pairs) == sorted(b for _, b in pairs):
        return was, now  # another sequence shows only in the whole lists
    return [a for a, _ in pairs], [b for _, b in pairs]


def _compare_layouts(
    old: Mapping[str, Any], new: Mapping[str, Any], location: str, *, named: bool
) -> None:
    """Compare layouts of state; `named`: compare keys too, because there is no meaning to compare."""
    if old.keys() != new.keys():
        _refuse("stateful operators", sorted(old), sorted(new), location)
    for operator in sorted(old):
        where = f" of {operator}" if len(old) > 1 else ""
        fields = old[operator].keys() | new[operator].keys()
        # time_mode first: another time mode has other timers, which are states too
        for field in sorted(fields, key=lambda name: (name != "time_mode", name)):
            was, now = (_unordered(field, layouts[operator].get(field)) for layouts in (old, new))
            if was == now or (field == "keys" and not named):
                continue
            if field == "states":
                _compare_each((f"states{where}", "state"), _states(was), _states(now), location)
            else:
                said = (_said(field, was), _said(field, now))
                _refuse(f"{_NAMES.get(field, field)}{where}", *said, location)


def _compare_each(
    words: tuple[str, str], old: Mapping[str, Any], new: Mapping[str, Any], location: str
) -> None:
    """Compare the names in two mappings, then the values; `words` name the whole and a part."""
    whole, part = words
    if old.keys() != new.keys():
        _refuse(whole, sorted(old), sorted(new), location)
    for name in old:
        _compare(f"{part} {name}", old[name], new[name], location)


def _compare(what: str, was: Any, now: Any, location: str) -> None:
    if was != now:
        _refuse(what, was, now, location)


def _refuse(what: str, was: Any, now: Any, location: str) -> None:
    msg = (
        f"checkpoint {location} belongs to another query ({what}: was {_shown(was)}, now "
        f"{_shown(now)}); {_REMEDY}"
    )
    raise CheckpointError(escaped(msg))


def _shown(value: Any) -> str:
    if value is None or value in ("", []):
        return "none"
    if isinstance(value, str):
        return f"`{value}`"
    if isinstance(value, Sequence):
        return ", ".join(map(_shown, value))
    return f"`{json.dumps(value)}`" if isinstance(value, Mapping) else str(value)


# -- layouts in words -----------------------------------------------------------------------------


def _unordered(field: str, value: Any) -> Any:
    """Return a part of a layout; the comparisons of a join, whose sequence means nothing, are sorted."""
    return sorted(value) if field == "comparisons" and value is not None else value


def _said(field: str, value: Any) -> Any:
    """Return a part of a layout in words."""
    if not value:
        return value
    if field == "kinds":
        return [_leaf(leaf) for leaf in value]
    if field == "time":
        return _window(*value)
    if field in ("aggregates", "kept"):
        return [f"{name.lower()}({', '.join(map(_leaf, leaves))})" for name, leaves in value]
    if field == "sides":
        return [f"{len(leaves)} columns ({', '.join(map(_leaf, leaves))})" for leaves in value]
    return f"{value / 1e6:g} s" if field.endswith("_us") else value


def _leaf(leaf: Sequence[int]) -> str:
    kind, scale = leaf
    return f"{_KINDS[kind]} ({scale} digits)" if kind == _DECIMAL else _KINDS[kind]


def _window(size_us: int, advance_us: int, offset_us: int) -> str:
    if size_us == 0:
        return "event time"
    numbers = [size_us, *([advance_us, offset_us] if offset_us or advance_us != size_us else [])]
    return f"window of {' / '.join(f'{us / 1e6:g} s' for us in numbers)}"


def _stages(stages: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the columns and types of each stage of pools."""
    return {
        name: [f"{field['name']} {json.dumps(field['type'])}" for field in schema["fields"]]
        for name, schema in (stages or {}).items()
    }


def _states(states: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the columns and types of each state of a processor."""
    return {name: _of_state(state) for name, state in (states or {}).items()}


def _of_state(state: Sequence[Any]) -> str:
    entry, values, ordered, expires = state
    columns = [f"{name} {kind}" for name, kind in (*entry, *values)]
    kind = "list" if ordered else "map" if entry else "value"
    return f"{kind} of {', '.join(columns)}{', with a time to live' if expires else ''}"
