"""Deciding: from an observation to a decision.

Belongs here: what a policy sees (observation), the policy port, the policies (one file per
paper), the estimators they share, and decorators such as cool-down, freeze and advise-only.
Everything is a deterministic function of its inputs. Does not belong here: clocks, I/O, Spark,
state, the journal, and how a decision is carried out (migration).
"""
