"""Starts, holds and ends a query: the front room, with everything that a user's program touches.

Belongs here: writer and its settings' use (writer, sparkwriter, configured), the start (start, launch,
begin), the handles (query, pool_query, running, ending), and `explain`, `verify`, `operator_plus`. Does
not belong here: the work of a batch (step), the reading of a plan (read).
"""
