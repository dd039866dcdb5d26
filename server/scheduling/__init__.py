"""The scheduler: places queued jobs, sends launches, judges leases."""
