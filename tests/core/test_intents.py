"""From SLOs as users write them to what they are worth."""

from __future__ import annotations

import pytest

from headgate.core.errors import ConfigError
from headgate.core.intents import utility_of
from headgate.core.slo import parse_slo
from headgate.core.utility import Metric, Step


@pytest.mark.parametrize(
    ("text", "metric", "threshold", "percentile"),
    [
        ("mean < 1 s over 1 s", Metric.LATENCY, 1.0, None),
        ("p95 < 800 ms over 10 s", Metric.LATENCY, 0.8, 95.0),
        ("max < 2 s over 10 s", Metric.LATENCY, 2.0, 99.9),
        ("juice >= 0.95 over 1 min", Metric.JUICE, 0.95, None),
        ("throughput >= 40000/s", Metric.THROUGHPUT, 40_000.0, None),
    ],
)
def test_an_slo_becomes_the_intent_that_it_says(text, metric, threshold, percentile):
    (intent,) = utility_of([parse_slo(text)], 10.0).intents
    assert (intent.metric, intent.threshold, intent.percentile) == (metric, threshold, percentile)


def test_several_slos_are_a_hybrid_of_one_shape():
    slos = [parse_slo("mean < 1 s over 1 s"), parse_slo("juice >= 0.9")]
    assert utility_of(slos, 10.0, Step()).current([2.0, 0.95]) == 5.0


def test_an_slo_about_one_operator_is_refused_since_a_job_is_judged_as_a_whole():
    with pytest.raises(ConfigError, match=r'is about one operator.* leave out "operator join-0:"'):
        utility_of([parse_slo("operator join-0: mean < 1 s over 1 s")], 1.0)


def test_a_job_without_an_slo_is_refused():
    with pytest.raises(ConfigError, match="needs an SLO"):
        utility_of([], 1.0)
