"""Pure computations for a run: batch partition, stream position, shapes, devices."""
