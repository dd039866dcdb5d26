"""The rounds of the scheduler, which place queued jobs, send launches and expire leases."""
