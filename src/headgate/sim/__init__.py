"""The simulated engine: the real loop, policies and strategies on a virtual clock.

Belongs here: queues, slots with service rates, hosts, channels, barriers and bandwidth, in
continuous and micro-batch mode. Does not belong here: Spark, wall clocks, global randomness, and
copies of what a policy or a strategy does.

How exact it is: every record has its own arrival, service time and completion, and slots serve in
the order of arrival, so latencies are those of the queues and no fluid stands in for records. Three
figures are of ticks: the sample of a tick in which a change came into force names the new
assignment, slots are counted at the end of each tick, and what a traced slice of time holds is
spread over it by chance. Quantiles are within 5 %. The network between operators takes no time.
"""
