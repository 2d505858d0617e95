"""The strategies, one file each; `headgate.migration.registry` finds them by name.

Belongs here: which sets move, through which phases, and who may go on. Does not belong here: the
state machine that carries a subscale through its phases (`headgate.migration.protocol`).
"""
