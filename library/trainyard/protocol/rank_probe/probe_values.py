"""The values that a rank of the probe logs: one series per rank, whose step names the value."""

from __future__ import annotations

from enum import IntEnum

SERIES = "probe"
"""Name under which each rank logs its values with `per_rank=True`."""
MAX_RANKS = 2000
"""Maximum number of ranks of a probe. Each rank has one series, and an attempt has at most 2,000.
"""


class ProbeValue(IntEnum):
    """A measured value; its number is the step at which a rank logs it.

    Numbers rise in the order of the measurements, because the steps of a series rise. Numbers never
    change, because the library of a node may be older than the library of the client.
    """

    KIND = 1
    """CRC-32 of the names of device and torch; ranks of one kind compute bit-equal gradients."""

    GRADIENT_DIGEST = 10
    """CRC-32 of all bits of the gradient that one seed gives."""
    GRADIENT_NORM = 11
    """L2 norm of the gradient, summed in float64."""
    GRADIENT_PROJECTION = 12
    """Product of the gradient and a fixed vector of random signs, divided by the norm."""
    GRADIENT_DIGESTS = 13
    """Number of different digests in the repetitions of the rank; 1 without a fault."""

    PRODUCTS_SECONDS = 20
    """Time of a fixed amount of matrix products: on a GPU the median of the wall times, on a CPU
    the shortest of the processor times."""
    PRODUCTS_SLOWEST_SECONDS = 21
    """Longest time of the same repetitions."""
    STEP_SECONDS = 22
    """Time of a training step of this rank alone, in the same way."""
    STEP_SLOWEST_SECONDS = 23
    """Longest time of the same steps."""

    STORAGE_KIND = 30
    """1 if the storage root of the checkpoints is a folder on this node, 0 if it is a bucket."""
    STORAGE_WRITE = 31
    """Bandwidth of a write with fsync to the storage root, in bytes per second."""
    STORAGE_READ = 32
    """Bandwidth at which the same file is read back, in bytes per second."""
    STORAGE_SYNC_SECONDS = 33
    """Median time of a write of 4 KiB with fsync in the storage root."""
    DATA_WRITE = 34
    """Bandwidth of a write with fsync to the node's data folder, in bytes per second."""
    DATA_READ = 35
    """Bandwidth at which the same file is read back, in bytes per second."""
    DATA_SYNC_SECONDS = 36
    """Median time of a write of 4 KiB with fsync in the data folder."""

    CLOCK_TIME = 40
    """Wall clock of the rank, as Unix time in seconds."""
    CLOCK_OFFSET = 41
    """Wall clock of the rank minus that of rank 0, in seconds."""
    CLOCK_UNCERTAINTY = 42
    """Half of the shortest round trip to rank 0, in seconds; the error of the offset is smaller."""

    LATENCY_SECONDS = 50
    """Median time of an all-reduce of 8 bytes over all ranks."""
    ALL_REDUCE_SMALL = 51
    """Bus bandwidth of a small all-reduce over all ranks, in bytes per second."""
    ALL_REDUCE_LARGE = 52
    """Bus bandwidth of a large all-reduce over all ranks, in bytes per second."""
    ALL_REDUCE_IN_NODE = 53
    """Bus bandwidth of a large all-reduce over the ranks of this node, in bytes per second."""
    ALL_REDUCE_OF_NODES = 54
    """Bus bandwidth of a large all-reduce over the first ranks of all nodes, in bytes per second.
    """
    LINK = 55
    """Bandwidth from the previous rank of the ring to this rank, in bytes per second."""
