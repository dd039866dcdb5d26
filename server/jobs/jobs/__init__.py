"""Jobs, which people submit, watch, stop and resume."""
