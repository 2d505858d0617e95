"""Draws random numbers as hashes of (seed, record number, field) instead of a stream.

So any process can generate any range of records, also again after a crash, and gets the same records.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
F64 = npt.NDArray[np.float64]

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def _mix(bits: int) -> int:
    """Return splitmix64's mix of one 64-bit number."""
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _MASK
    return bits ^ (bits >> 31)


@dataclass(frozen=True)
class Draw:
    """Draws random bits for some records: element i depends on (seed, record i, field) only.

    Parameters
    ----------
    steps : uint64[n]
        Record numbers, multiplied once for all fields; see `of`.
    fields : tuple of str
        Fields with random values. Their order is part of a stream's format: a new field goes to the end.
    """

    seed: int
    steps: U64
    fields: tuple[str, ...]

    @classmethod
    def of(cls, seed: int, record: I64, fields: tuple[str, ...]) -> Draw:
        """Return the draws of the records with these numbers."""
        return cls(seed, record.astype(np.uint64) * np.uint64(_GOLDEN), fields)

    def bits(self, field: str, word: int = 0) -> U64:
        """Return 64 random bits per record; a field that needs more bits asks for `word` 1, 2, ..."""
        field_key = _mix((self.fields.index(field) + 1) * 0x10000 + word)
        key = _mix((self.seed * _GOLDEN + field_key) & _MASK)
        bits = self.steps + np.uint64(key)
        # In place: the array is in cache, a new one would not be.
        bits ^= bits >> np.uint64(30)
        bits *= np.uint64(0xBF58476D1CE4E5B9)
        bits ^= bits >> np.uint64(27)
        bits *= np.uint64(0x94D049BB133111EB)
        bits ^= bits >> np.uint64(31)
        return bits

    def below(self, field: str, bound: I64 | int) -> I64:
        """Return a uniform integer from [0, bound) per record; bound < 2^31."""
        return below(self.bits(field), bound)

    def unit(self, field: str) -> F64:
        """Return a uniform number from [0, 1) per record, in steps of 2^-53."""
        return unit(self.bits(field))

    def letters(self, field: str, width: int) -> npt.NDArray[np.uint8]:
        """Return uint8[n, width] of random lower-case letters."""
        words = [self.bits(field, word) for word in range(-(-width // 8))]
        raw = np.stack(words, axis=1).astype("<u8", copy=False).view(np.uint8)[:, :width]
        return np.uint8(ord("a")) + raw % np.uint8(26)


def below(bits: U64, bound: I64 | int) -> I64:
    """Return the upper 32 of `bits` scaled to [0, bound)."""
    high: I64 = (bits >> np.uint64(32)).view(np.int64)
    scaled: I64 = (high * bound) >> 32
    return scaled


def unit(bits: U64) -> F64:
    """Return the upper 53 of `bits` as a number in [0, 1)."""
    high = (bits >> np.uint64(11)).view(np.int64).astype(np.float64)
    share: F64 = high * 2.0**-53
    return share


def zipf_shares(count: int, exponent: float) -> F64:
    """Return the share of each rank from 0 to `count` - 1: rank k has weight ``1/(k + 1)^exponent``."""
    weight = np.arange(1, count + 1, dtype=np.float64) ** -exponent
    shares: F64 = weight / weight.sum()
    return shares


@lru_cache(maxsize=16)
def zipf_edges(count: int, exponent: float) -> F64:
    """Return the cumulative sums of `zipf_shares`; the last is 1."""
    cumulative = np.cumsum(np.arange(1, count + 1, dtype=np.float64) ** -exponent)
    edges: F64 = cumulative / cumulative[-1]
    return edges
