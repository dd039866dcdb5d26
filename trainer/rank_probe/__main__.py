"""`python -m trainer.rank_probe`: measures this rank, and logs each value with `run.log`.

The program of a job, started by torchrun on each slot. docs/prove-probe.md lists the values and
their bounds. The exit code is 0 even if a measurement has failed: ranks that still measure would
end with the first rank that fails. The verdict names the values that are missing.
"""

from __future__ import annotations

import argparse
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import NamedTuple

import torch.distributed as dist

from trainer.distributed import Ranks, joined
from trainer.loop.build import compute_deterministically
from trainer.process import leave
from trainer.rank_probe.clock_check import measure_clock
from trainer.rank_probe.disk_check import measure_disks
from trainer.rank_probe.gradient_check import measure_gradient
from trainer.rank_probe.network_speed import measure_network
from trainer.rank_probe.probe_place import Measured, ProbePlace
from trainer.rank_probe.speed_check import measure_speed
from trainyard.protocol.attempt import AttemptSpec
from trainyard.protocol.rank_probe.probe_values import SERIES
from trainyard.run.directory import RunDirectory
from trainyard.run.session import Run, init

logger = logging.getLogger("trainer")


class Measurement(NamedTuple):
    """A measurement, in the order of its values."""

    name: str
    measure: Callable[[ProbePlace], Measured]


MEASUREMENTS = (
    # The network comes last: a broken link costs no other measurement.
    Measurement("gradient", measure_gradient),
    Measurement("speed", measure_speed),
    Measurement("disk", measure_disks),
    Measurement("clock", measure_clock),
    Measurement("network", measure_network),
)


def main() -> None:
    """Measure, then end the process."""
    arguments = _parser().parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    probe(arguments.seconds, disk_mib=arguments.disk_mib, root=arguments.root)
    leave(0)


def probe(seconds: float, *, disk_mib: int, root: str) -> None:
    """Measure this rank together with all other ranks of the launch, and log the values.

    Args:
        seconds: time limit; the process then ends with exit code 1, and keeps the values so far.
        disk_mib: size of the file that the disk measurement writes, in MiB.
        root: name of the storage root that is measured.
    """
    run = init()
    watch = _Watch(run, seconds)
    attempt = _attempt(run)
    compute_deterministically()
    device = (attempt.device if attempt is not None else None) or "auto"
    with joined(device, hang_seconds=seconds) as ranks:
        place = _place(ranks, run, attempt, root=root)
        place = replace(place, disk_bytes=disk_mib * 2**20)
        for measurement in MEASUREMENTS:
            watch.current = measurement.name
            _measure(measurement, place, run, limit=seconds / 3)
        run.flush()
        watch.current = "end"
    watch.cancel()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m trainer.rank_probe", description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=240.0, help="time limit of the whole probe in seconds"
    )
    parser.add_argument("--disk-mib", type=int, default=256, help="size of the written file in MiB")
    parser.add_argument(
        "--root", default="checkpoints", help="name of the storage root that is measured"
    )
    return parser


class _Watch:
    """Ends the process at its time limit, after the values so far are written."""

    def __init__(self, run: Run, seconds: float) -> None:
        self.current = "start"
        self._run, self._seconds = run, seconds
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True
        self._timer.start()

    def cancel(self) -> None:
        """Let the process run on."""
        self._timer.cancel()

    def _end(self) -> None:
        logger.error("the probe did not end in %g s, during: %s", self._seconds, self.current)
        self._run.flush()
        leave(1)


def _attempt(run: Run) -> AttemptSpec | None:
    """Return the attempt of the job; None outside a job."""
    if run.directory is None:
        return None
    return AttemptSpec.model_validate_json(RunDirectory(run.directory).attempt.read_bytes())


def _place(ranks: Ranks, run: Run, attempt: AttemptSpec | None, *, root: str) -> ProbePlace:
    if attempt is not None and root not in attempt.roots:
        logger.error("this node has no storage root %r; it has %s", root, sorted(attempt.roots))
    return ProbePlace(
        ranks=ranks,
        group=ranks.cpu_group,
        local_rank=run.local_rank,
        node_size=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        storage=None if attempt is None else attempt.roots.get(root),
        data=run.directory,
        disk_bytes=0,
    )


def _measure(measurement: Measurement, place: ProbePlace, run: Run, *, limit: float) -> None:
    """Run a measurement on all ranks at once, and log its values; an error ends only this one.

    Args:
        measurement: the measurement.
        place: place of this rank.
        run: run of this rank.
        limit: timeout of its collectives, in seconds.
    """
    started = time.perf_counter()
    try:
        group = dist.new_group(
            backend="gloo", timeout=timedelta(seconds=limit), group_desc=measurement.name
        )
        dist.barrier(group=group)  # ranks that share a machine load it in the same way
        for value, number in measurement.measure(replace(place, group=group)):
            run.log({SERIES: number}, step=value, per_rank=True)
            logger.info("%s %r", value.name, number)
    except Exception:
        logger.exception("%s was not measured completely", measurement.name)
    logger.info("%s took %.1f s", measurement.name, time.perf_counter() - started)


if __name__ == "__main__":
    main()
