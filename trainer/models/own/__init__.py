"""Own models: a module of the user's code, its plans, and how its forward depends on data."""
