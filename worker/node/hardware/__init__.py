"""What the node is made of, and how it fares: GPUs, cores, memory, disks."""
