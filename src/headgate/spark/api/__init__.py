"""Starts and ends queries, and implements the classes and functions that a user's program calls.

Belongs here: the writer and the use of its settings (writer, sparkwriter, configured), the start
(start, launch, begin), the handles (query, pool_query, running, ending), `explain`, `verify` and
`operator_plus`. Does not belong here: the work of a batch (step), the reading of a plan (read).
"""
