"""Events: their table, and the tail that streams new ones."""
