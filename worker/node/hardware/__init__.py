"""The node's hardware and its state: GPUs, cores, memory, disks."""
