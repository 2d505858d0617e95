"""The simulated engine: the real loop, policies and strategies on a virtual clock.

Belongs here: queues, slots with service rates, hosts, channels, barriers and bandwidth, in
continuous and micro-batch mode. Does not belong here: Spark, wall clocks, global randomness, and
copies of what a policy or a strategy does.
"""
