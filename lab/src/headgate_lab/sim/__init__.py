"""Simulators beyond the one in `headgate.sim`: record by record, pools, fleets, a shared join."""
