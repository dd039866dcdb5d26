"""torch's flight recorder: the last collectives of this rank, on gloo and on NCCL.

torch keeps them in a ring. Only the ring's JSON text is read, never its pickle. The list is empty
without a recorder, or if this version of torch writes another format.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from trainyard.run.records import MAX_RANK_RANGES, PendingCollective, RankRange

logger = logging.getLogger("trainer")


@dataclass(frozen=True)
class Recorded:
    """One collective, as this rank recorded it."""

    group: str
    """Description and name of the process group; equal on all its ranks."""
    ranks: tuple[int, ...]
    """Global ranks of the group; empty if unknown."""
    number: int
    """Position among the collectives of the group; equal on all ranks."""
    op: str
    """Name of the operation, such as `all_reduce`."""
    sizes: str
    """Shapes of the input."""
    completed: bool
    """Whether the collective has ended on this rank."""
    started_at: float
    """Unix time of the call, in seconds."""
    seconds: float | None
    """Duration on the device in seconds; None while it is unknown, and always None on gloo."""


_receiving: list[Recorded] = []


def recorded(*, nccl: bool) -> list[Recorded]:
    """Return the collectives in the ring, the oldest one first."""
    c10d = sys.modules.get("torch._C._distributed_c10d")
    dump = getattr(c10d, "_dump_nccl_trace_json" if nccl else "_dump_fr_trace_json", None)
    if dump is None:
        return []
    try:
        return parse(dump(True, False), _known_groups())
    except (KeyError, TypeError, ValueError):
        logger.exception("the flight recorder has another form in this version of torch")
        return []


@contextmanager
def noted(receive: Recorded) -> Iterator[None]:
    """Note a point-to-point receive, which gloo's recorder omits, during the block."""
    _receiving.append(receive)
    try:
        yield
    finally:
        _receiving.remove(receive)


def receiving() -> list[Recorded]:
    """Return the noted receives in which this rank waits; every thread may call this."""
    return list(_receiving)


def parse(
    text: str | bytes, known: Mapping[str, tuple[int, ...]] = MappingProxyType({})
) -> list[Recorded]:
    """Return the collectives in a recorder's JSON text.

    Args:
        text: JSON text of the recorder.
        known: global ranks of groups, by name, because gloo's recorder omits them.

    Raises:
        KeyError, TypeError, ValueError: the text has another format.
    """
    record = json.loads(text)
    listed = {config["name"]: _ranks(config) for config in record.get("pg_config", {}).values()}
    groups = {**listed, **known}
    return [
        Recorded(
            group="/".join(reversed(entry["process_group"])),
            ranks=groups.get(entry["process_group"][0], ()),
            number=int(entry["collective_seq_id"]),
            op=entry["profiling_name"].partition(":")[2] or entry["profiling_name"],
            sizes=str(entry.get("input_sizes", "")),
            completed=entry["state"] == "completed" or bool(entry.get("retired")),
            started_at=int(entry["time_created_ns"]) / 1e9,
            seconds=_seconds(entry.get("duration_ms")),
        )
        for entry in record.get("entries", ())
        if not entry.get("is_p2p")
    ]


def pending(*rings: Iterable[Recorded]) -> PendingCollective | None:
    """Return the oldest unfinished collective of all rings, for which this rank waits."""
    unfinished = ([one for one in ring if not one.completed] for ring in rings)
    firsts = (ring[0] for ring in unfinished if ring)
    first = min(firsts, key=lambda one: one.started_at, default=None)
    if first is None:
        return None
    return PendingCollective(
        group=first.group,
        ranks=rank_ranges(first.ranks),
        number=first.number,
        op=first.op,
        sizes=first.sizes,
    )


def rank_ranges(ranks: Iterable[int]) -> tuple[RankRange, ...]:
    """Return ranks as ranges, in order; empty for more than `MAX_RANK_RANGES` ranges."""
    runs: list[range] = []
    for rank in sorted(set(ranks)):
        last = runs[-1] if runs else range(0)
        if len(last) == 1:
            runs[-1] = range(last[0], rank + 1, rank - last[0])
        elif last and rank - last[-1] == last.step:
            runs[-1] = range(last.start, rank + 1, last.step)
        else:
            runs.append(range(rank, rank + 1))
    if len(runs) > MAX_RANK_RANGES:
        return ()
    return tuple(RankRange(first=run[0], last=run[-1], step=run.step) for run in runs)


def _known_groups() -> dict[str, tuple[int, ...]]:
    """Return the global ranks of this process' process groups, by name."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None:
        return {}
    groups = list(c10d._world.pg_names.items())
    return {name: tuple(c10d.get_process_group_ranks(group)) for group, name in groups}


def _ranks(config: Mapping[str, Any]) -> tuple[int, ...]:
    listed = config.get("ranks", "[]")
    return tuple(json.loads(listed) if isinstance(listed, str) else listed)


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else float(milliseconds) / 1000
