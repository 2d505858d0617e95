"""Stateless Python stages of a query, each run by a pool of replicas that follow the load.

Belongs here: reading a chain of ``mapInArrow`` stages from a query's plan, one batch of it, and the
pools. Does not belong here: key groups, state, and any decision (`headgate.control.policies`).

A replica is a slot whose rows may be any: a task of its own in each batch, which runs on one of the
warm Python workers. A replica that is inactive and holds nothing has no task at all, so it costs
nothing; one that is deactivated has tasks until what it holds is served.
"""
