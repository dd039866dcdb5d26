"""The base of every other part of the server: tables, events, states, leases, settings."""
