"""The audit log of the API: which operations it has, refused attempts, and its endpoints."""
