"""Decides about slots: turns the observation of a job into a decision.

Belongs here: the counters that an engine reports (sample), the input of a policy (observation), its
output (decision), the port of a policy (policy), the names of the policies (registry), limits and checks
for every policy (decorators, limits), and the estimators that policies share (estimators).
Policies are in three rooms: slots of a query (slots), many queries (fleet), pools of replicas (pools).
Everything is a deterministic function of its inputs. Does not belong here: clocks, I/O, Spark, state,
the journal, and the way a decision is carried out (migration).

The names that a user's own policy imports are here and in `hg.Policy`; see docs/own-policy.md.
"""

from headgate.control.decision import NOTHING, Change, Decision
from headgate.control.observation import Observation, OperatorView
from headgate.control.slots.rescaling import arrival_rate, mean_service_rate, scaled

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
