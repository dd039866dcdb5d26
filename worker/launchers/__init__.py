"""How a share of an attempt is launched: the command line and environment of its ranks."""
