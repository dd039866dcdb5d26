"""The scheduler: it places queued jobs, sends launches and expires leases."""
