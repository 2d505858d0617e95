"""Names the numbers of the journal: their range is checked while a line is read."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from headgate.core.input import FLOAT_MAX, KEY_GROUPS_MAX, WHOLE_MAX

LATEST_MS = 250_000_000_000_000
"""The year 9892: what a calendar can still show in every time zone."""

Whole = Annotated[int, Meta(ge=-WHOLE_MAX, le=WHOLE_MAX)]
"""A whole number."""

Count = Annotated[int, Meta(ge=0, le=WHOLE_MAX)]
"""A number of things; below 0 it is damaged."""

Groups = Annotated[int, Meta(ge=0, le=KEY_GROUPS_MAX)]
"""A number of slots or of key groups."""

Instant = Annotated[int, Meta(ge=0, le=LATEST_MS)]
"""Milliseconds since 1970."""

Number = Annotated[float, Meta(ge=-FLOAT_MAX, le=FLOAT_MAX)]
"""A finite number."""
