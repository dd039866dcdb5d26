"""Kills a training run at random moments, resumes it each time, and compares its whole curve.

`make soak` runs it; `KILLS` and `SEED` are its parameters. Half of the kills hit one long run that
stays on two ranks and must end in the very bits of an undisturbed run. The other half hit
short runs that come back on other layouts: the same data, schedule and counters, and the
loss within 1e-4.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import random
import shutil
import sys
import tempfile
import time
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from tests.trainer.points import at_points
from tests.trainer.ranks import StartedRanks, run_ranks, started_ranks
from tests.trainer.runs import JOB, Attempt, Meddling, SmallJob, train_rank
from trainer.checkpoint.manifest import check_contents
from trainer.checkpoint.save_folder import Point
from trainyard.protocol.manifest import Manifest
from trainyard.protocol.record_parser import parse_record
from trainyard.run.checkpoints.checkpoint_names import checkpoint_path
from trainyard.run.records import Heartbeat, MetricRecord
from trainyard.spec.layout import Layout

TWO = Layout(dp_shard=2)
OTHERS = (
    TWO,
    Layout(),
    Layout(dp_shard=3),
    Layout(dp_shard=4),
    Layout(dp_replicate=2),
    Layout(dp_replicate=2, dp_shard=2),
)
COUNTERS = ("train/lr", "train/tokens", "train/sequences")
COMPUTED = ("train/loss", "train/grad_norm")
INTERVAL = 2  # steps between saves
SHORT = 60  # steps over which another layout stays within the tolerance
LOSS_TOLERANCE = 1e-4  # relative, float32
GRACE = 3.0  # seconds for which ranks may continue after the death of a peer
LONGEST = 900.0  # seconds of an attempt; longer means that it hangs

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Kind:
    """The kind of run to kill."""

    steps: int
    layouts: tuple[Layout, ...]
    """Layouts on which it continues; the first is the default."""

    def job(self, folder: Path, **checkpoint: Any) -> SmallJob:
        """Return the job of this kind."""
        training = {"steps": self.steps, "log_every_steps": 1}
        return SmallJob(folder).changed(folder, training=training, checkpoint=checkpoint)


@dataclass
class Figures:
    """The results of a soak run."""

    seed: int
    kills: int = 0
    resumes: int = 0
    moves: int = 0
    """Kills after which the next attempt had another layout."""
    runs: int = 0
    steps: int = 0
    """Compared steps of all curves."""
    lost_steps: int = 0
    """Steps trained more than once."""
    leftovers: int = 0
    """Partial checkpoints left by kills."""
    seconds: float = 0.0
    where: dict[str, int] = field(default_factory=dict)
    """Kills by the activity of a killed rank."""


@dataclass(frozen=True)
class Whole:
    """An undisturbed run."""

    lines: dict[int, MetricRecord]
    """Its curve, by step."""
    horizon: float
    """Range of seconds from an attempt's start to its kill, which allows some steps."""


class SoakError(AssertionError):
    """A kill had an effect that it must not have; the text names the attempt's run directory."""


def soak(folder: Path, *, kills: int, seed: int) -> Figures:
    """Kill runs a number of times, and return the results.

    Raises:
        SoakError: a checkpoint was lost, damaged or half-written and yet listed, or a curve differs
            from that of the undisturbed run.
        RankError: an attempt that was not killed failed.
    """
    started, chance, figures = time.monotonic(), random.Random(seed), Figures(seed)
    run_ranks(1, int, initialize=False)  # whatever is forked later starts as fast as the first
    kinds = [
        (kills // 2, Kind(steps=max(SHORT, kills), layouts=(TWO,))),
        (kills, Kind(SHORT, layouts=OTHERS)),
    ]
    for until, kind in kinds:
        whole = _undisturbed(folder / f"undisturbed-{until}", kind)
        while figures.kills < until:
            place = folder / f"run-{figures.runs}"
            _Run(place, kind, whole=whole, chance=chance, figures=figures).go(until=until)
            shutil.rmtree(place)
    figures.seconds = time.monotonic() - started
    return figures


def _undisturbed(folder: Path, kind: Kind) -> Whole:
    run, began = kind.job(folder).prepare(1, TWO), time.time()
    with _started(2, run) as ranks:
        ranks.results()
    lines = _lines(run)
    step = (lines[SHORT].time - lines[1].time) / (SHORT - 1)
    return Whole(lines, 1.3 * (lines[1].time - began) + 3 * INTERVAL * step)


class _Run:
    """One run: killed attempts, each followed by one that continues, until the end."""

    def __init__(
        self, folder: Path, kind: Kind, *, whole: Whole, chance: random.Random, figures: Figures
    ) -> None:
        self._kind, self._whole, self._chance, self._figures = kind, whole, chance, figures
        mode = ("async", "disabled")[figures.runs % 2]
        self._job = kind.job(folder, interval_steps=INTERVAL, async_mode=mode)
        self._seen: set[str] = set()

    def go(self, *, until: int) -> None:
        """Kill it until the total of kills is reached, then let it end; compare its curve."""
        figures, number, runs, ended = self._figures, 0, list[Path](), False
        layout: Layout | None = None
        while not ended:
            number += 1
            before = layout
            layout, run = self._prepare(number)
            figures.moves += number > 1 and layout != before
            runs.append(run)
            ended = self._launch(run, layout.world_size, last=figures.kills >= until)
            self._check_storage(run, number)
        self._compare(runs)
        figures.resumes += number - 1
        figures.runs += 1
        figures.steps += self._kind.steps

    def _prepare(self, number: int) -> tuple[Layout, Path]:
        layouts, chance = self._kind.layouts, self._chance
        layout = chance.choice(layouts) if chance.random() < 0.4 else layouts[0]
        if chance.random() < 0.1:  # like on another node, without a token cache
            shutil.rmtree(self._job.folder / "cache", ignore_errors=True)
        return layout, self._job.prepare(number, layout, resume=self._newest())

    def _launch(self, run: Path, size: int, *, last: bool) -> bool:
        """Return whether the run has ended, and was not killed."""
        chance = self._chance
        moment = chance.uniform(0, self._whole.horizon)
        victims = list(range(size)) if chance.random() < 0.5 else [chance.randrange(size)]
        grace = chance.choice((0.0, GRACE))
        with _started(size, run) as ranks:
            if last or wait(ranks.connections, timeout=moment):
                ranks.results()
                return True
            for rank in victims:
                ranks.processes[rank].kill()
            ranks.processes[victims[0]].join()
            self._count(_doing(run, victims[0]), f"{len(victims)} of {size} ranks", run)
            if len(victims) < size:
                others = set(range(size)) - set(victims)
                wait([ranks.processes[rank].sentinel for rank in others], timeout=grace)
        return False

    def _count(self, doing: str, victims: str, run: Path) -> None:
        figures = self._figures
        figures.kills += 1
        figures.where[doing] = figures.where.get(doing, 0) + 1
        step = max(_lines(run), default=0)
        logger.info("kill %d: %s, after step %d, %s", figures.kills, victims, step, doing)

    def _check_storage(self, run: Path, number: int) -> None:
        """Refuse a missing or damaged checkpoint, and uncollected leftovers."""
        job, figures = self._job, self._figures
        committed = job.committed()
        if lost := self._seen - committed.keys():
            raise SoakError(f"{run} lost {sorted(lost)}")
        self._seen = set(committed)
        folders = set()
        for manifest in committed.values():
            path = checkpoint_path(JOB, manifest.attempt, manifest.train_state.step)
            folders.add(job.storage / path)
            check_contents(job.storage / path, manifest.files)
        leftovers = set((job.storage / JOB).glob("a*/step-*")) - folders
        own = {folder for folder in leftovers if folder.parent.name == f"a{number}"}
        if leftovers - own and _lines(run):
            raise SoakError(f"{run} left {sorted(leftovers - own)} where they were")
        figures.leftovers += len(own)
        newest = self._newest()
        saved = newest.train_state.step if newest else 0
        figures.lost_steps += max(0, max(_lines(run), default=0) - saved)

    def _newest(self) -> Manifest | None:
        return max(
            self._job.committed().values(),
            key=lambda manifest: (manifest.train_state.step, manifest.attempt),
            default=None,
        )

    def _compare(self, runs: list[Path]) -> None:
        exact = len(self._kind.layouts) == 1
        whole, seen = self._whole.lines, set[int]()
        for run in runs:
            for step, line in _lines(run).items():
                seen.add(step)
                if not _same(line, whole[step], exact=exact):
                    raise SoakError(f"{run}: step {step} is {line}, not {whole[step]}")
        if missing := whole.keys() - seen:
            raise SoakError(f"{runs[-1]}: steps {sorted(missing)} are missing")


def _started(size: int, run: Path) -> AbstractContextManager[StartedRanks]:
    return started_ranks(size, _train, str(run), initialize=False, timeout_seconds=LONGEST)


def _train(run: str) -> str:
    """Train as usual, and store the points of this rank's saves next to the records."""
    path = Path(run) / f"points-{os.environ['RANK']}"
    with path.open("a", buffering=1) as file:

        def keep(point: Point, _path: Path) -> None:
            file.write(f"{point}\n")

        with at_points(keep):
            return train_rank(run, Meddling())


def _doing(run: Path, rank: int) -> str:
    """Return a dead rank's last activity: the last point of its save, or its phase."""
    points, heartbeat = run / f"points-{rank}", run / "heartbeat.json"
    passed = points.read_text().splitlines() if points.exists() else []
    if Point.BEGUN in passed and passed[-1] != Point.REPORTED:
        return f"save: {passed[-1]}"
    if heartbeat.exists():
        return str(parse_record(Heartbeat, heartbeat.read_bytes()).phase)
    return "collecting" if passed else "starting"


def _lines(run: Path) -> dict[int, MetricRecord]:
    return Attempt(run).lines if (run / "metrics.jsonl").exists() else {}


def _same(line: MetricRecord, expected: MetricRecord, *, exact: bool) -> bool:
    mine, theirs = line.values, expected.values
    names = [*COUNTERS, *(COMPUTED if exact else ())]
    return (
        line.data_digest == expected.data_digest
        and all(mine[name] == theirs[name] for name in names)
        and math.isclose(mine["train/loss"], theirs["train/loss"], rel_tol=LOSS_TOLERANCE)
    )


def main() -> None:
    """Command line: print the seed immediately, and the figures as JSON at the end."""
    parser = argparse.ArgumentParser(prog="python -m tests.trainer.soak", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--data", type=Path, help="folder that is kept; else a temporary one")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logger.info("seed %d", arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        place = arguments.data or Path(folder)
        figures = soak(place, kills=arguments.kills, seed=arguments.seed)
    sys.stdout.write(json.dumps(asdict(figures), indent=2) + "\n")


if __name__ == "__main__":
    main()
