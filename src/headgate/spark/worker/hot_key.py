"""Finds the value of a slot's hottest key, if the user allows it in the journal."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa

from headgate.operators.step import RECORDS

_KEY = re.compile(r"k\d+")
"""Matches the columns of a key in a slot's input."""

_CHARACTERS = 80
"""The most characters of a key's column that are shown."""


def hottest_key(arriving: pa.Table) -> tuple[int, str] | None:
    """Return the records and the value of the most frequent key in a slot's new records.

    None without records, or if the operator has no key.
    """
    names = [name for name in arriving.column_names if _KEY.fullmatch(name)]
    if not names or not arriving.num_rows:
        return None
    counted = arriving.group_by(names).aggregate([(RECORDS, "sum")])
    records = counted.column(f"{RECORDS}_sum").to_numpy()
    most = int(np.argmax(records))
    values = ", ".join(_text(counted.column(name)[most].as_py()) for name in names)
    return int(records[most]), values


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return repr(value.decode("utf-8", "replace")[:_CHARACTERS])
    return str(value)[:_CHARACTERS]
