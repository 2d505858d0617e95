"""Simulates many jobs on a few hosts, for fleet policies that decide by rounds.

Belongs here: queues of whole operators, hosts with cores, the cost of a change of slots. Does not belong
here: policies (control), topologies (workloads), figures (experiments).

Accuracy: records are a fluid, served in the order of arrival by all slots of an operator together, so
that an overloaded operator delays its records by the time to serve its backlog. For operators that keep
up, the random part of the waiting time is Kingman's, with records assigned to the slots in turn. The
slots of an operator are spread evenly over the hosts. If the slots of a host want more than its cores,
all are slowed down equally.
"""
