"""Generates sentences for a word count; every row is a pure function of (configuration, number).

References
----------
[STREAMSWITCH] figure 16: WordCount, 15,000 sentences/s that swing by 25 % in 300 s. The paper does not
describe the sentences; here a sentence has a few words, drawn by Zipf's law.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.core.errors import ConfigError
from headgate.workloads.rates import RateFunction, SineRate
from headgate_demo.generators.draws import Draw, zipf_edges

__all__ = ["SCHEMA", "SentenceConfig", "sentences"]

LETTERS = 7
"""Letters of a word; a little more than an English word in running text has, so that words differ."""

_FIELDS = ("length", "word", "letters")
"""Fields with random values; their order is part of the format."""

_RATE = SineRate(base_per_s=11_250.0, amplitude_per_s=3_750.0, period_s=300.0)

SCHEMA = pa.schema(
    [pa.field("text", pa.string()), pa.field("scheduled", pa.timestamp("us", tz="UTC"))]
)
"""Columns of `sentences`: words with one blank between them, and the time at which the row is due."""


@dataclass(frozen=True)
class SentenceConfig:
    """Holds the parameters of the generator: words, lengths and the rate of sentences."""

    seed: int = 0
    """Chooses all random numbers; any integer of 64 bits."""

    rate: RateFunction = _RATE
    """Sentences per second. Default: [STREAMSWITCH] figure 16."""

    words: int = 10_000
    """Different words; >= 1. Chosen, not tuned."""

    exponent: float = 1.0
    """Zipf exponent of the words; >= 0; at 0 all words are equally frequent."""

    length: int = 10
    """Words of the longest sentence; >= 1. Lengths are uniform from 1 on. Chosen, not tuned."""

    def __post_init__(self) -> None:
        for name, least in (("words", 1), ("exponent", 0), ("length", 1)):
            if not getattr(self, name) >= least:
                msg = f"{name} of sentences is {getattr(self, name)}; give {least} or more."
                raise ConfigError(msg)


def sentences(config: SentenceConfig, start: int, stop: int, base_us: int) -> pa.RecordBatch:
    """Return the rows [start, stop) of the stream; they do not depend on how a range is divided.

    Parameters
    ----------
    start, stop : int
        Row numbers from 0; ``0 <= start <= stop``.
    base_us : int
        When the stream started, us since the Unix epoch.

    Returns
    -------
    RecordBatch
        Rows with `SCHEMA`, by number.
    """
    assert 0 <= start <= stop, (start, stop)
    number = np.arange(start, stop, dtype=np.int64)
    lengths = 1 + Draw.of(config.seed, number, _FIELDS).below("length", config.length)
    # the number of a word: the first number of its sentence plus its place in the sentence
    first = np.repeat(number * config.length, lengths)
    ends = np.cumsum(lengths)
    place = np.arange(len(first)) - np.repeat(ends - lengths, lengths)
    share = Draw.of(config.seed, first + place, _FIELDS).unit("word")
    rank = np.searchsorted(zipf_edges(config.words, config.exponent), share, side="right")
    words = _vocabulary(config.words).take(pa.array(np.minimum(rank, config.words - 1)))
    offsets = pa.array(np.concatenate([[0], ends]).astype(np.int32))
    text = pc.binary_join(pa.ListArray.from_arrays(offsets, words), " ")
    due_us = np.floor(config.rate.time_of(number) * 1e6).astype(np.int64)
    scheduled = pa.array(base_us + due_us).cast(pa.timestamp("us"))
    return pa.RecordBatch.from_arrays(
        [text, scheduled.cast(pa.timestamp("us", tz="UTC"))], schema=SCHEMA
    )


@lru_cache(maxsize=4)
def _vocabulary(count: int) -> pa.Array:
    """Return the words, the most frequent first."""
    letters = Draw.of(0, np.arange(count, dtype=np.int64), _FIELDS).letters("letters", LETTERS)
    return pa.array([row.tobytes().decode() for row in letters])
