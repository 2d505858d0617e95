"""Many jobs on a few hosts: the simulated cluster that a fleet policy drives by rounds.

Belongs here: queues of whole operators, hosts with cores, what a change of slots costs. Does not
belong here: a policy (control), a topology (workloads), what a figure is about (experiments).

How exact it is: records are a fluid, served in the order of arrival by all slots of an operator
together, so that an overloaded operator delays its records by what its backlog takes; the wait that
chance adds where a slot keeps up is Kingman's, for slots that records are dealt to in turn. Slots of
an operator are spread evenly over the hosts. Where the slots of a host want more of its cores than
there are, each is slowed alike until they fit.
"""
