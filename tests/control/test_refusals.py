"""What a policy or an estimator cannot be told, or cannot say yet."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headgate.control.estimators.split import BoundSplit
from headgate.control.policy import checked
from headgate.control.pools.groupings import Groupings, _known
from headgate.core.errors import ConfigError, NotReady
from headgate.core.utility import Intent, Metric


class Nameless:
    """A policy but for its name."""

    def decide(self, observation: object) -> None: ...
    def applied(self, operator: str, change: object, took_s: float) -> None: ...
    def slot_failed(self, operator: str, slot_id: int) -> None: ...


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: BoundSplit([], 1.0), ConfigError, "no operators to be split among; name one"),
        (lambda: BoundSplit([["a"], []], 1.0), ConfigError, "no operators to be split among"),
        (lambda: BoundSplit([["a"]], 0.0), ConfigError, "end_to_end_s"),
        (lambda: BoundSplit([["a"]], 1.0, gain=float("nan")), ConfigError, "gain"),
        (
            lambda: _known("shufle"),
            ConfigError,
            'unknown grouping "shufle"; did you mean "shuffle"',
        ),
        (
            lambda: Groupings(stages={"a": "shuffle"}).check(["b"]),
            ConfigError,
            'headgate.grouping names a stage "a", which is not one of',
        ),
        (
            lambda: checked(Nameless, "the policy"),
            ConfigError,
            "is the class Nameless; give an obj",
        ),
        (lambda: checked(Nameless(), "the policy"), ConfigError, "has no text called name; derive"),
        (
            lambda: checked(object(), "the policy"),
            ConfigError,
            "has no method decide; derive object",
        ),
        (
            lambda: Intent(Metric.LATENCY, 1.0).share(float("nan")),
            NotReady,
            "has not been measured yet",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(
    call: Callable[[], object], error: type[Exception], says: str
) -> None:
    with pytest.raises(error) as refused:
        call()
    assert says in str(refused.value)
