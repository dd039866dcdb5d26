"""Own models: a module of the user's code, its plans, and what of its forward varies with data."""
