"""Background work that nodes claim and report on (docs/lifecycle-operations.md, 31-36)."""
