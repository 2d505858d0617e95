"""Decides about slots: turns the observation of a job into a decision.

Belongs here: the counters that an engine reports (sample), the input of a policy (observation; fleet_view
for many jobs, replicas for pools), its output (decision), the ports of policies (policy), the policies,
one file per paper (policies), the estimators that they share (estimators), the scoring of rules on past
load (hindsight), and decorators such as cool-down, freeze and advise-only (decorators, granted).
Everything is a deterministic function of its inputs. Does not belong here: clocks, I/O, Spark, state,
the journal, and the way a decision is carried out (migration).

The names that a user's own policy imports are here and in `hg.Policy`; see docs/own-policy.md.
"""

from headgate.control.decision import NOTHING, Change, Decision
from headgate.control.observation import Observation, OperatorView
from headgate.control.rescaling import arrival_rate, mean_service_rate, scaled

__all__ = [
    "NOTHING",
    "Change",
    "Decision",
    "Observation",
    "OperatorView",
    "arrival_rate",
    "mean_service_rate",
    "scaled",
]
