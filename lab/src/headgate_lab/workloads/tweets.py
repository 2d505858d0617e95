"""Generates synthetic tweets, with their words and pairs of words as keys.

References
----------
STRETCH 8.1 has 4.3 million tweets that are not public. Chosen: 4 to 16 words each, of 10,000 words with
frequencies by Zipf's law with exponent 1.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headgate.core.jit import jit
from headgate_demo.generators.draws import zipf_shares

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

WORDS_MAX = 16
"""Most words of a tweet of 140 characters."""

VOCABULARY = 10_000

TWEETS = 4096
"""Number of different tweets, which repeat."""


def tweets(seed: int = 1) -> I32:
    """Return the words of the different tweets, int32[TWEETS, WORDS_MAX], padded with -1."""
    generator = np.random.default_rng(seed)
    words = generator.choice(VOCABULARY, (TWEETS, WORDS_MAX), p=zipf_shares(VOCABULARY, 1.0))
    lengths = generator.integers(4, WORDS_MAX + 1, TWEETS)
    return np.where(np.arange(WORDS_MAX) < lengths[:, None], words, -1).astype(np.int32)


@jit
def keys_of(words: I32, distance_max: int, out: I64) -> int:
    """Write the keys of some tweets, with repetitions, to `out`; return their number.

    The key of a word is its number, that of a pair combines both numbers. -1 ends a tweet.
    """
    count = 0
    for tweet in range(words.shape[0]):
        for i in range(words.shape[1]):
            word = np.int64(words[tweet, i])
            if word < 0:
                break
            if distance_max == 0:
                out[count] = word
                count += 1
                continue
            for j in range(i + 1, min(i + 1 + distance_max, words.shape[1])):
                other = np.int64(words[tweet, j])
                if other < 0:
                    break
                out[count] = word * VOCABULARY + other
                count += 1
    return count


def keys(words: I32, distance_max: int) -> I64:
    """Return the keys of some tweets, with repetitions, tweet by tweet.

    Parameters
    ----------
    words : int32[n, WORDS_MAX]
    distance_max : int
        Largest distance of the words of a pair; 0: words.
    """
    out = np.empty(words.shape[0] * WORDS_MAX * WORDS_MAX, np.int64)
    return out[: keys_of(words, distance_max, out)].copy()


def keys_per_tweet(distance_max: int) -> float:
    """Return the mean number of keys of a tweet."""
    return keys(tweets(), distance_max).size / TWEETS
