"""DRRS's signals, one rule each, on the event log; `test_mutants` breaks each of them."""

from __future__ import annotations

import pytest
import signal_rules
from signal_rules import RULES, Rule


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_drrs_keeps_the_rule(rule: Rule) -> None:
    rule()


def test_a_relaxed_task_gets_each_record_once_but_not_in_order() -> None:
    relaxed, in_order = signal_rules.relaxed_answers()
    assert relaxed.records == in_order.records
    assert relaxed.reordered > 0
    assert in_order.reordered == 0


def test_no_record_scheduling_waits_longer() -> None:
    on_s, off_s = (signal_rules.suspended_s(records_max) for records_max in (200, 0))
    assert on_s < off_s


def test_a_larger_buffer_waits_less() -> None:
    large_s, small_s = (signal_rules.suspended_s(records_max) for records_max in (200, 1))
    assert large_s < small_s
