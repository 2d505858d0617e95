"""Finds rows without a match in their floating-point columns, among rows with equal exact columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headgate.core.near import unmatched


@dataclass(frozen=True)
class Nearness:
    """Matches wanted and present rows among rows with equal exact columns."""

    columns: tuple[str, ...]
    """Names of the columns with lists of doubles."""
    relative: tuple[float, ...]
    floor: tuple[float, ...]
    """`relative`, `floor`: one relative and one absolute tolerance per column; see `unmatched`."""

    def left_over(self, group: pa.Table) -> pa.Table:
        """Return columns ``net`` and ``cells`` of the rows without a match.

        ``net``: copies of the row that the output lacks, or, if negative, has too many.
        """
        counts = group["net"].to_numpy()
        places = np.repeat(np.arange(len(counts)), np.abs(counts))
        signs = np.sign(counts)[places]
        parts = [np.array(group[name].to_pylist(), dtype=np.float64) for name in self.columns]
        widths = [part.shape[1] if part.ndim > 1 else 0 for part in parts]
        numbers = np.hstack([part.reshape(len(counts), -1) for part in parts])[places]
        wanted, present = np.flatnonzero(signs > 0), np.flatnonzero(signs < 0)
        left = unmatched(
            numbers[wanted],
            numbers[present],
            _each(self.relative, widths),
            _each(self.floor, widths),
        )
        rest = np.zeros(len(counts), dtype=np.int64)
        np.add.at(rest, places[wanted[left[0]]], 1)
        np.add.at(rest, places[present[left[1]]], -1)
        unmatched_rows = np.flatnonzero(rest)
        return pa.table(
            {"net": rest[unmatched_rows], "cells": group["cells"].take(pa.array(unmatched_rows))}
        )


def _each(values: Sequence[float], widths: Sequence[int]) -> np.ndarray:
    return np.repeat(np.array(values, dtype=np.float64), widths)
