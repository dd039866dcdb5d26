"""The machines: registration, inventory, draining."""
