"""Pure computations for training: batch partition, stream position, shapes, devices."""
