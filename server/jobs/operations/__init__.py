"""Operations: background work that nodes claim, renew and end (docs/lifecycle.md, 31-36)."""
