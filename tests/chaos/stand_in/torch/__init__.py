"""Takes the place of torch on a node whose ranks are stand-ins."""
