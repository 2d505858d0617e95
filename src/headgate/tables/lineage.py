"""Brings a table from its own token to another token."""

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
    """Bring a clean table to `token` in place, in the cheapest way.

    False if no way leads from the table to `token`: the table is unchanged, so build a new one.

    `table`: trusted, and acquired by this caller alone. `chain`: called at most twice.
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
    # An attempt that was never committed ran here; the state before it may lead to `token`.
    if can_roll_back and table.previous != EMPTY_TOKEN:
        sections = chain(table.previous)
        if leads(sections, table.previous, token):
            table.roll_back()
            table.catch_up(sections)
            return True
    return False


def build(table: BufferTable, group: int, token: str, chain: Chain) -> None:
    """Fill an empty table from a full section, or from all sections since the empty state.

    Raises `StateError` if the chain does not lead to `token`.
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
