"""Simulators beyond the one in `headgate.whatif`: record by record, pools, fleets, a shared join."""
