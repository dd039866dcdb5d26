"""The goodput ledger: the wall time of a job by category."""
