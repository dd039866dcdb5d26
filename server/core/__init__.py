"""Base of all other parts of the server: tables, events, states, leases, settings."""
