"""Step time of a layout: what its fullest rank does, and what the hardware needs for it."""
