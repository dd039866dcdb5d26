"""Step time of a layout, from the work of its busiest rank and the rates of the hardware."""
