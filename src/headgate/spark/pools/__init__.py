"""Runs stateless Python stages on pools of replicas that follow the load.

Belongs here: the steps of such a query, the input of a stage, the loop that changes replicas, the
journal of pools. Does not belong here: stateful operators (step), the policies (control).
"""
