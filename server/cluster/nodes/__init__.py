"""The nodes: registration, inventory, draining."""
