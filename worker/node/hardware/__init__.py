"""Hardware of the node and its state: GPUs, cores, memory, disks."""
