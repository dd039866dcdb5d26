"""Reports in the format of supervisors: bodies with the offsets of their files."""

from __future__ import annotations

import base64
import json
import random
import time
import zlib
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

from benchmarks.control_plane.servers import Running
from trainyard.protocol.record_parser import check_record
from trainyard.protocol.worker_messages import PROTOCOL, Chunk, Identity, Report
from trainyard.run.directory import Phase
from trainyard.run.records import ExitRecord, Heartbeat

SERIES = 10
NAMES = ("train/loss", *(f"bench/series_{number}" for number in range(1, SERIES)))


SPANS = 64
"""Spans of ranks in one comparison; this is the limit."""


class ReportMaker:
    """Makes the reports of one supervisor in sequence."""

    def __init__(self, running: Running, *, seed: int) -> None:
        self._running = running
        self._chance = random.Random(seed)
        self._lines = metric_lines(seed)
        self._identity = Identity(boot_id="boot", pid_namespace="1", pid=1, start_time=1)
        self._step = 0
        self._straggles = False
        self._offsets: dict[str, int] = {}

    def make(self, *, steps: int, log_lines: int = 0, compares: bool = False) -> bytes:
        """Return the body of the next report.

        Args:
            steps: lines of metrics, each with `SERIES` values and a digest.
            log_lines: lines of rank 0's output, of 80 bytes.
            compares: whether the trainer has compared its ranks: adds their times, and a straggler
                that is found or has recovered.
        """
        metrics = [next(self._lines) for _ in range(steps)]
        if metrics:
            self._step = metrics[-1]["step"]
        contents = {
            "metrics": _json_lines(metrics),
            "log:0": b"".join(self._log_line(number) for number in range(log_lines)),
            "events": _json_lines(self._comparison() if compares else ()),
        }
        report = Report(
            protocol=PROTOCOL,
            node=self._running.node,
            identity=self._identity,
            heartbeat=Heartbeat(phase=Phase.TRAINING, step=self._step, time=time.time()),
            chunks=tuple(self.chunk(file, new) for file, new in contents.items() if new),
        )
        return report.model_dump_json().encode()

    def last(self) -> bytes:
        """Return the body of the report with the exit."""
        now = time.time()
        end = {"outcome": "succeeded", "failure": None, "ranks": (), "time": now}
        report = Report(
            protocol=PROTOCOL,
            node=self._running.node,
            identity=self._identity,
            heartbeat=Heartbeat(phase=Phase.TRAINING, step=self._step, time=now),
            exit=check_record(ExitRecord, end),
        )
        return report.model_dump_json().encode()

    def _log_line(self, number: int) -> bytes:
        """Return a line of 80 bytes that compresses like numbers in text."""
        chance = self._chance.getrandbits(128)
        return b"step %012d line %012d %043d\n" % (self._step, number, chance)

    def _comparison(self) -> list[dict[str, Any]]:
        now = {"time": time.time(), "step": self._step}
        spent = {"compute_seconds": 0.4, "data_seconds": 0.001, "wait_seconds": 0.05}
        spans = [
            {"first_rank": rank, "last_rank": rank, "rank": rank} | spent for rank in range(SPANS)
        ]
        self._straggles = not self._straggles
        straggler: dict[str, Any] = {"rank": 0}
        if self._straggles:
            straggler |= {"kind": "compute", "factor": 1.5, "share": 0.3}
        kind = "straggler_found" if self._straggles else "straggler_gone"
        return [
            now | {"kind": "rank_times", "data": {"ranks": spans}},
            now | {"kind": kind, "data": straggler},
        ]

    def chunk(self, file: str, content: bytes) -> Chunk:
        """Return the next bytes of a file."""
        start = self._offsets.get(file, 0)
        end = self._offsets[file] = start + len(content)
        packed = base64.b64encode(zlib.compress(content, 1)).decode()
        return Chunk(file=file, start=start, end=end, content=packed)


def metric_lines(seed: int) -> Iterator[dict[str, Any]]:
    """Yield lines of metrics, one for each step from 1 on, with `SERIES` values and a digest."""
    chance = random.Random(seed)
    for step in count(1):
        yield {
            "step": step,
            "time": 1.7e9 + step / 10,
            "values": {name: chance.gauss(2.0, 0.1) for name in NAMES},
            "data_digest": f"{chance.getrandbits(128):032x}",
        }


def _json_lines(records: Iterable[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(each, separators=(",", ":")) + "\n" for each in records).encode()
