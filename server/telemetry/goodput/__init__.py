"""The goodput ledger: the time of a job by category."""
