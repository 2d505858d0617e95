"""Real processes, killed and paused: the protocol holds; the trial would notice if not."""

from __future__ import annotations

import pytest

from headgate_lab.testing.trial import LAYOUT, IgnoresLineage, TakesOver, run_trials

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def test_no_trial_gives_a_wrong_sum():
    assert run_trials(25, seed=1) == []


def test_the_trial_catches_a_store_that_believes_numbers():
    assert run_trials(6, 1, lambda directory: IgnoresLineage(directory, LAYOUT))


def test_the_trial_catches_a_store_that_takes_over_dirty_files():
    assert run_trials(6, 1, lambda directory: TakesOver(directory, LAYOUT))
