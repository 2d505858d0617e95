"""Deciding: from an observation to a decision.

Belongs here: what a policy sees (observation), the policy port, the policies (one file per
paper), the estimators they share, and decorators such as cool-down, freeze and advise-only.
Everything is a deterministic function of its inputs. Does not belong here: clocks, I/O, Spark,
state, the journal, and how a decision is carried out (migration).

What a policy of one's own imports is here and in `hg.Policy`; see docs/own-policy.md.
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
