"""Implements the strategies, one file each; `headgate.migration.registry` finds them by name.

Belongs here: the choice of the sets that move, their phases, and the sets that may go on. Does not
belong here: the state machine that takes a subscale through its phases (`headgate.migration.protocol`).
"""
