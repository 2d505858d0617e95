"""Real processes, killed and paused: the protocol holds; the trial would notice if not."""

from __future__ import annotations

import pytest

from headgate_lab.testing.trial import LAYOUT, IgnoresLineage, TakesOver, run_trials

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def test_no_trial_gives_a_wrong_sum():
    assert run_trials(25, seed=1) == []


@pytest.mark.parametrize("broken", [IgnoresLineage, TakesOver])
def test_the_trial_catches_a_store_with_a_broken_protocol(broken):
    # The scheduler decides which moments meet, so one trial catches it often and not always.
    trials = (
        run_trials(1, seed, lambda directory: broken(directory, LAYOUT)) for seed in range(99)
    )
    assert any(trials)
