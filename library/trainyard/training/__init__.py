"""Pure facts of a run: batch partition, stream position, shapes, devices."""
