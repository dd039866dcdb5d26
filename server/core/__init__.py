"""What every other part of the server rests on: tables, events, states, leases, settings."""
