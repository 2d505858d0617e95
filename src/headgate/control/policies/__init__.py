"""The policies, one file each; `headgate.control.registry` finds them by name."""
