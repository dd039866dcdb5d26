"""The wall clock of this rank, compared with that of rank 0."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from trainer.rank_probe.probe_place import Measured, ProbePlace
from trainyard.protocol.rank_probe.probe_values import ProbeValue

ROUND_TRIPS = 8


def measure_clock(place: ProbePlace) -> Measured:
    """Yield the wall clock, its offset to rank 0, and half of the shortest round trip.

    Rank 0 answers the other ranks one after another. The offset comes from the shortest round trip,
    as in NTP: rank 0 read its clock at some moment of this trip, so the error is at most half of
    it.
    """
    yield ProbeValue.CLOCK_TIME, time.time()
    rank, peers = place.ranks.rank, place.ranks.world_size
    offset, uncertainty = 0.0, 0.0
    if rank == 0:
        for peer in range(1, peers):
            _answer(peer, place.group)
    else:
        uncertainty, offset = min(_round_trip(place.group) for _ in range(ROUND_TRIPS))
    yield ProbeValue.CLOCK_OFFSET, offset
    yield ProbeValue.CLOCK_UNCERTAINTY, uncertainty


def _answer(peer: int, group: dist.ProcessGroup) -> None:
    call, reply = torch.zeros(1), torch.zeros(1, dtype=torch.float64)
    for _ in range(ROUND_TRIPS):
        dist.recv(call, group_src=peer, group=group)
        reply[0] = time.time()
        dist.send(reply, group_dst=peer, group=group)


def _round_trip(group: dist.ProcessGroup) -> tuple[float, float]:
    """Return half of the duration of a round trip, and the offset to rank 0."""
    call, reply = torch.zeros(1), torch.zeros(1, dtype=torch.float64)
    started, before = time.perf_counter(), time.time()
    dist.send(call, group_dst=0, group=group)
    dist.recv(reply, group_src=0, group=group)
    half = (time.perf_counter() - started) / 2
    return half, before + half - reply.item()
