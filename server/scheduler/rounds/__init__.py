"""The scheduler: places queued jobs, sends launches, expires leases."""
