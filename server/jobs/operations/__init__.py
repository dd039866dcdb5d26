"""Background work that nodes claim, renew and end (docs/lifecycle-operations.md, 31-36)."""
