"""Step time of a layout: work of its fullest rank, and rates of the hardware."""
