"""Defines the types of numbers in the journal; reading a line checks their ranges."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from headgate.core.input import FLOAT_MAX, KEY_GROUPS_MAX, WHOLE_MAX

LATEST_MS = 250_000_000_000_000
"""The year 9892, ms since 1970: calendars in all time zones can show times up to it."""

Whole = Annotated[int, Meta(ge=-WHOLE_MAX, le=WHOLE_MAX)]
"""A whole number."""

Count = Annotated[int, Meta(ge=0, le=WHOLE_MAX)]
"""A number of things; a negative number is damage."""

Groups = Annotated[int, Meta(ge=0, le=KEY_GROUPS_MAX)]
"""A number of slots or of key groups."""

Instant = Annotated[int, Meta(ge=0, le=LATEST_MS)]
"""Milliseconds since 1970."""

Number = Annotated[float, Meta(ge=-FLOAT_MAX, le=FLOAT_MAX)]
"""A finite number."""
