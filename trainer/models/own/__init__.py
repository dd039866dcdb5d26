"""Own models: modules from the user's code, their plans, and their dependence on data."""
