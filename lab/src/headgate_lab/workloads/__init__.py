"""Workloads that only figures and benchmarks play: bursts, topologies, tweets, rates of an exchange."""
