"""What a node stores: its roots, and the run directories of attempts."""
