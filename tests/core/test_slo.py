"""SLO texts: what they mean, their canonical form, and what is said of a wrong one."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.errors import ConfigError
from headgate.core.slo import EACH_OPERATOR, END_TO_END, LATENCIES, Slo, parse_slo


@pytest.mark.parametrize(
    ("text", "slo", "canonical"),
    [
        ("1s over 1s", Slo("mean", 1.0, 1.0, EACH_OPERATOR), "mean < 1 s over 1 s"),
        ("mean <= 1 second over 5 seconds", Slo("mean", 1.0, 5.0), "mean < 1 s over 5 s"),
        ("P99<800ms over 10s", Slo("p99", 0.8, 10.0, END_TO_END), "p99 < 800 ms over 10 s"),
        (
            "end-to-end: mean < 1.5 s over 1 min",
            Slo("mean", 1.5, 60.0, END_TO_END),
            "end-to-end: mean < 1.5 s over 1 min",
        ),
        (
            " operator  counts : p99.9 < 90 s over 2 h in 95% of windows ",
            Slo("p99.9", 90.0, 7200.0, "operator counts", 0.95),
            "operator counts: p99.9 < 90 s over 2 h in 95 % of windows",
        ),
        ("max < 2 s over 1 s in 99 % of windows", Slo("max", 2.0, 1.0), "max < 2 s over 1 s"),
        ("juice >= 0.95", Slo("juice", 0.95, 60.0), "juice >= 0.95 over 1 min"),
        ("juice > 95 % over 5 min", Slo("juice", 0.95, 300.0), "juice >= 0.95 over 5 min"),
        (
            "throughput >= 30000 rows/min",
            Slo("throughput", 500.0, 60.0),
            "throughput >= 500 records/s over 1 min",
        ),
        (
            "throughput >= 2/s over 10 s",
            Slo("throughput", 2.0, 10.0),
            "throughput >= 2 records/s over 10 s",
        ),
    ],
)
def test_a_text_is_read_and_has_one_canonical_form(text: str, slo: Slo, canonical: str) -> None:
    assert parse_slo(text) == slo
    assert str(slo) == canonical
    assert parse_slo(canonical) == slo


@given(
    st.sampled_from(LATENCIES),
    st.floats(1e-6, 1e6),
    st.floats(1e-6, 1e6),
    st.sampled_from(["", END_TO_END, "operator a-b"]),
    st.floats(1e-6, 1.0),
)
def test_the_canonical_form_reads_back_exactly(
    statistic: str, bound: float, window_s: float, scope: str, success: float
) -> None:
    slo = Slo(statistic, bound, window_s, scope, success)
    assert parse_slo(str(slo)) == slo


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "p99 < 800 over 10 s",
            'SLO "p99 < 800 over 10 s" has no unit at "800"; write "p99 < 800 ms over 10 s".',
        ),
        (
            "mean < 1 over 1 s",
            'SLO "mean < 1 over 1 s" has no unit at "1"; write "mean < 1 s over 1 s".',
        ),
        (
            "p99 < 800 ms over 10",
            'SLO "p99 < 800 ms over 10" has no unit at "10"; write "p99 < 800 ms over 10 s".',
        ),
        (
            "p98 < 1 s over 1 s",
            'SLO "p98 < 1 s over 1 s" has the unknown statistic "p98"; did you mean "p99"?',
        ),
        ("latency < 1 s over 1 s", "use mean, p50, p90, p95, p99, p99.9, max, juice, throughput."),
        ("mean < 1 s", 'SLO "mean < 1 s" has no window; write "mean < 1 s over 10 s".'),
        ("mean > 1 s over 1 s", 'wrong side; write "mean < 1 s over 1 s".'),
        ("juice < 0.9", 'wrong side; write "juice >= 0.9".'),
        ("juice >= 1.2", "the bound 1.2 on juice is out of range; use more than 0 and at most 1."),
        ("juice >= most", 'has no number at "most"'),
        ("operator a: juice >= 0.9", 'scope "operator a" does not fit juice; use "end-to-end".'),
        ("throughput >= 500", 'no rate at "500"; write "throughput >= 500 records/s".'),
        ("mean < 0 s over 1 s", "is not above zero and finite"),
        ("mean < 1 parsec over 1 s", 'unknown unit "parsec"'),
        ("mean < 1 s over 1 s in 0 % of windows", "success=0 is out of range"),
        ("soon", 'cannot read SLO "soon"; write "mean < 1 s over 1 s"'),
        ("", 'cannot read SLO ""; write'),
    ],
)
def test_a_wrong_text_is_refused_with_what_to_write(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_slo(text)
    assert message in str(caught.value)


@given(st.text(max_size=60) | st.from_regex(r"[a-z0-9.:<>=% ]{0,60}"))
def test_no_text_raises_anything_but_a_refusal(text: str) -> None:
    with contextlib.suppress(ConfigError):
        parse_slo(text)


def test_the_alert_threshold_is_100_ms_or_half_of_a_smaller_bound() -> None:
    assert parse_slo("mean < 1 s over 1 s").alert_s == 0.1
    assert parse_slo("mean < 80 ms over 1 s").alert_s == pytest.approx(0.04)


@pytest.mark.parametrize("alert_s", [1.0, 1.5])
def test_an_alert_threshold_not_below_the_bound_is_refused(alert_s: float) -> None:
    with pytest.raises(ConfigError, match="is not below the bound 1 s; use less than 1 s"):
        Slo("mean", 1.0, 1.0, alert_s=alert_s)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"statistic": "p98"}, "p98"),
        ({"bound": 0.0}, "the bound 0 on mean"),
        ({"bound": float("inf")}, "the bound inf on mean"),
        ({"window_s": float("nan")}, "window_s=nan"),
        ({"success": 1.1}, "success=1.1"),
        ({"scope": "somewhere"}, "somewhere"),
        ({"scope": "operator "}, "operator "),
        ({"scope": "operator a:b"}, "operator a:b"),
        ({"statistic": "p99", "scope": EACH_OPERATOR}, EACH_OPERATOR),
    ],
)
def test_values_out_of_range_are_refused(changed: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        Slo(**{"statistic": "mean", "bound": 1.0, "window_s": 1.0, **changed})  # type: ignore[arg-type]


def test_an_objective_knows_the_operator_it_is_about() -> None:
    assert parse_slo("operator counts: mean < 1 s over 1 s").operator == "counts"
    assert parse_slo("mean < 1 s over 1 s").operator is None
