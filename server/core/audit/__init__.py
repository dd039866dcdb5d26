"""The audit log: rows of requests, the chain of digests, its check, export and retention."""
