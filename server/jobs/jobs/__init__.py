"""Jobs: what people submit, watch, stop and resume."""
