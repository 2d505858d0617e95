"""The generated sentences: repeatable, by Zipf's law, at the rate asked for."""

from __future__ import annotations

from collections import Counter

import pytest

from headgate.core.errors import ConfigError
from headgate.workloads.rates import ConstantRate
from headgate_demo.generators.sentences import SCHEMA, SentenceConfig, sentences

CONFIG = SentenceConfig(seed=2, rate=ConstantRate(1000.0), words=50, length=4)


def test_a_sentence_is_the_same_however_the_range_is_cut():
    whole = sentences(CONFIG, 0, 900, 5)
    parts = [sentences(CONFIG, *span, 5) for span in ((0, 1), (1, 333), (333, 900), (900, 900))]
    assert whole.schema == SCHEMA
    assert whole.to_pylist() == [row for part in parts for row in part.to_pylist()]


def test_sentences_have_one_to_length_words_evenly():
    texts = sentences(CONFIG, 0, 8000, 0).column("text").to_pylist()
    lengths = Counter(len(text.split(" ")) for text in texts)
    assert sorted(lengths) == [1, 2, 3, 4]
    assert all(1800 < count < 2200 for count in lengths.values())


def test_the_second_word_comes_half_as_often_as_the_first():
    texts = sentences(CONFIG, 0, 8000, 0).column("text").to_pylist()
    counts = Counter(word for text in texts for word in text.split(" "))
    first, second = (count for _, count in counts.most_common(2))
    assert len(counts) == 50
    assert second / first == pytest.approx(0.5, abs=0.05)


def test_sentences_come_at_the_rate_of_the_paper():
    assert SentenceConfig().rate.count(300.0) == pytest.approx(15_000 * 300, rel=1e-6)
    assert sentences(CONFIG, 0, 1, 0).column("scheduled").cast("int64").to_pylist() == [1000]


@pytest.mark.parametrize("wrong", [{"words": 0}, {"exponent": -1.0}, {"length": 0}])
def test_a_setting_out_of_range_is_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        SentenceConfig(**wrong)
