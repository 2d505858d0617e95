"""Simulates pools of replicas of stateless operators on a virtual clock, interval by interval.

Belongs here: the graph, queues per replica, grouping, activation without a restart, and restarts that
lose queued events. Does not belong here: key groups and assignments, which stateless operators do not
have (`headgate.whatif`), and decisions (`headgate.control.policies`).

Accuracy: every event has its own arrival, service time and completion at every operator, and a replica
serves in the order of arrival. Activations take effect between two intervals. The network between
operators takes no time.
"""
