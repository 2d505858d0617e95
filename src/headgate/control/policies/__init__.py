"""Implements the policies, one file each; `headgate.control.registry` finds them by name.

Belongs here: a paper's policy with its parameters. Does not belong here: arithmetic that several policies
share (estimators, strategies, rescaling, repacking, hindsight), carrying a decision out (migration).
"""
