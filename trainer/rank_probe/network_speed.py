"""Bandwidth and latency between the ranks: all-reduces, and each link of a ring."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.rank_probe.probe_place import Measured, ProbePlace
from trainer.rank_probe.probed_model import SCALES
from trainyard.protocol.rank_probe.probe_values import ProbeValue

WARM_UP = 2
REPETITIONS = 6
LATENCY_REPETITIONS = 25


def measure_network(place: ProbePlace) -> Measured:
    """Yield latency and bus bandwidths of all-reduces, and the bandwidth of the ring's link.

    The bus bandwidth is 2 (n - 1) / n x bytes / seconds, as in NCCL's tests, from the fastest
    repetition: other repetitions contain waits for ranks that were late. With one rank there is
    nothing to measure.

    Raises:
        RuntimeError: a collective failed or did not end.
    """
    ranks, network = place.ranks, _Network(place)
    if ranks.world_size == 1:
        return
    everyone = range(ranks.world_size)
    yield ProbeValue.LATENCY_SECONDS, network.latency()
    small, large = SCALES[ranks.device.type].reduced_bytes
    group = place.group if ranks.device.type == "cpu" else None  # None: the group over NCCL
    yield ProbeValue.ALL_REDUCE_SMALL, network.all_reduce(everyone, small, group=group)
    yield ProbeValue.ALL_REDUCE_LARGE, network.all_reduce(everyone, large, group=group)
    if place.node_size < ranks.world_size:
        yield from _of_nodes(network, place, large)
    yield ProbeValue.LINK, network.link(large)


def _of_nodes(network: _Network, place: ProbePlace, size: int) -> Measured:
    """Yield the bandwidths inside this node and between the nodes.

    Every rank takes part in each creation of groups, also without a measurement of its own, because
    NCCL splits the communicator of all ranks.
    """
    own, firsts = place.node_ranks, network.first_ranks()
    in_node = dist.new_group(list(own), use_local_synchronization=True)
    if len(own) > 1:
        yield ProbeValue.ALL_REDUCE_IN_NODE, network.all_reduce(own, size, group=in_node)
    of_nodes = dist.new_group(firsts)
    if place.ranks.rank in firsts:
        yield ProbeValue.ALL_REDUCE_OF_NODES, network.all_reduce(firsts, size, group=of_nodes)


class _Network:
    """The transfers of one rank."""

    def __init__(self, place: ProbePlace) -> None:
        self._place = place
        self._rank = place.ranks.rank
        self._size = place.ranks.world_size
        self._device = place.ranks.device

    def first_ranks(self) -> list[int]:
        """Return the first rank of each node."""
        local = torch.zeros(self._size, dtype=torch.int64)
        local[self._rank] = self._place.local_rank
        dist.all_reduce(local, group=self._place.group)
        firsts: list[int] = torch.nonzero(local == 0).flatten().tolist()
        return firsts

    def latency(self) -> float:
        """Return the median time of an all-reduce of 8 bytes over all ranks, in seconds."""
        value = torch.zeros(1, dtype=torch.float64, device=self._device)
        group = self._place.group if self._device.type == "cpu" else None
        return median(self._times(lambda: _reduce(value, group), LATENCY_REPETITIONS))

    def all_reduce(
        self, members: Sequence[int], size: int, *, group: dist.ProcessGroup | None
    ) -> float:
        """Return the bus bandwidth of an all-reduce, in bytes per second."""
        values = torch.zeros(size // 4, device=self._device)
        seconds = min(self._times(lambda: _reduce(values, group), REPETITIONS))
        count = len(members)
        return 2 * (count - 1) / count * size / seconds

    def link(self, size: int) -> float:
        """Return the bandwidth from the previous rank of the ring, in bytes per second.

        Links that share no rank are measured at the same time, so the number of phases is two, or
        three for an odd number of ranks. The receiver requests each transfer: a sender ahead of it
        would fill the buffers before the clock starts.
        """
        values = torch.zeros(size // 4, device=self._device)
        mine = (self._rank - 1) % self._size
        found = 0.0
        for phase in range(2 + self._size % 2):
            dist.barrier(group=self._place.group)
            if self._phase(mine) == phase:
                found = size / min(self._times(lambda: self._receive(values, mine), REPETITIONS))
            if self._phase(self._rank) == phase:
                self._times(lambda: self._send(values), REPETITIONS)
        return found

    def _phase(self, sender: int) -> int:
        return 2 if self._size % 2 and sender == self._size - 1 else sender % 2

    def _receive(self, values: Tensor, sender: int) -> None:
        dist.send(torch.zeros(1), sender, group=self._place.group)
        dist.recv(values, sender, group=self._transfers)

    def _send(self, values: Tensor) -> None:
        receiver = (self._rank + 1) % self._size
        dist.recv(torch.zeros(1), receiver, group=self._place.group)
        dist.send(values, receiver, group=self._transfers)

    @property
    def _transfers(self) -> dist.ProcessGroup | None:
        return self._place.group if self._device.type == "cpu" else None

    def _times(self, work: Callable[[], None], repetitions: int) -> list[float]:
        """Return the seconds of each repetition, until the device has ended its work."""
        times = []
        for repetition in range(WARM_UP + repetitions):
            started = time.perf_counter()
            work()
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            if repetition >= WARM_UP:
                times.append(time.perf_counter() - started)
        return times


def _reduce(values: Tensor, group: dist.ProcessGroup | None) -> None:
    dist.all_reduce(values, group=group)
