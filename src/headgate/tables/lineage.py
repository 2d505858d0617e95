"""Brings a table from its own token to the token that is wanted."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.core.errors import StateError
from headgate.tables.ports import EMPTY_TOKEN, Chain, Section
from headgate.tables.table import BufferTable


def leads(sections: Sequence[Section], start: str, token: str) -> bool:
    """Return whether `sections`, applied to the state `start`, give the state `token`."""
    at = start
    for section in sections:
        if section.full or section.previous != at:
            return False
        at = section.token
    return at == token


def bring(table: BufferTable, token: str, chain: Chain) -> bool:
    """Bring a clean table to `token` in place, the cheapest way there is.

    False if the table's own state is not on the way: it is as it was; build a new one.

    `table`: trusted, and held by this caller alone. `chain`: asked at most twice.
    """
    if table.token == token:
        return True
    can_roll_back = table.can_roll_back()
    if can_roll_back and table.previous == token:
        table.roll_back()
        return True
    sections = chain(table.token)
    if leads(sections, table.token, token):
        table.catch_up(sections)
        return True
    # An attempt that was never committed ran here; what it built on may be on the way.
    if can_roll_back and table.previous != EMPTY_TOKEN:
        sections = chain(table.previous)
        if leads(sections, table.previous, token):
            table.roll_back()
            table.catch_up(sections)
            return True
    return False


def build(table: BufferTable, group: int, token: str, chain: Chain) -> None:
    """Fill an empty table from a full section, or from the whole history.

    Raises `StateError`: the chain does not lead to `token`.
    """
    if token == EMPTY_TOKEN:
        return
    sections = chain(EMPTY_TOKEN)
    if sections and sections[0].full:
        reached = leads(sections[1:], sections[0].token, token)
    else:
        reached = leads(sections, EMPTY_TOKEN, token)
    if not reached:
        end = sections[-1].token if sections else "nothing"
        msg = (
            f"key group {group} cannot be brought to state {token}: its changelog leads to {end}; "
            "see `headgate inspect --verify` on the checkpoint"
        )
        raise StateError(msg)
    table.catch_up(sections)
