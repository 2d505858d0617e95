"""Contains workloads of figures and benchmarks only: bursts, topologies, tweets, rates of an exchange."""
