"""Plans of saves and resumes at 8 to 4,096 ranks of Llama 8B, 70B and 405B, rank by rank.

For each layout the first rank, a middle one and the last one run alone, each in a process with a
fake process group (`one_rank_plan`). Times are processor times, which other load hardly changes.
For comparison, DCP's own planner plans for all ranks and pickles its metadata, if the ranks are few
enough. One rank of 512 saves its part of the state in the background (`save_stall`). gloo's
descriptors are counted in real groups of up to 64 ranks.

    python -m benchmarks.checkpoint_plans [--check] [--ranks 4096] [--to benchmarks/results]
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import pickle
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from benchmarks.checkpoint_plans.dcp_plan import DcpCost, dcp_cost
from benchmarks.checkpoint_plans.gloo_descriptors import RANKS, DescriptorLaw, descriptor_law
from benchmarks.checkpoint_plans.log_picture import log_picture
from benchmarks.checkpoint_plans.one_rank_plan import (
    PlanCost,
    Stage,
    describe_stage,
    job,
    plan_cost,
    resharding_cost,
)
from benchmarks.checkpoint_plans.save_stall import SaveStall, save_stall
from benchmarks.report import emit
from trainer.checkpoint.writer.storage_writer import WrittenShare
from trainyard.protocol.manifest import (
    DataState,
    Manifest,
    ManifestFile,
    ManifestWriter,
    TrainState,
)
from trainyard.spec.layout import Layout

PACKAGES = ("torch", "numpy", "pydantic")
FIRST, LATER, RESUME, COMMIT = 2.0, 0.1, 3.0, 64 * 2**20
"""Targets: seconds of the first plan, of a later one and of a resume's, and bytes at a commit."""
DESCRIPTORS, DESCRIPTOR_RANKS = 200, 512
"""Limit of gloo's descriptors on a rank, and the number of ranks for which it holds."""
STALL, ROUNDS = 0.005, 7
"""Limit of the time for which a background save blocks training, relative to a synchronous save."""
STALLED = ("8B", Layout(dp_shard=512))
MEMORY = Path("/dev/shm")
"""Folder of the saves: on slower storage their blocking part is smaller."""
PRELOAD = [
    "torch._dynamo",
    "trainer.parallel.pipeline",
    "benchmarks.checkpoint_plans.one_rank_plan",
    "benchmarks.checkpoint_plans.gloo_descriptors",
    "benchmarks.checkpoint_plans.save_stall",
]
YARDSTICK = 64
"""Limit of ranks for DCP's planner: at 512 it takes half a minute and 4 GiB."""


@dataclass(frozen=True)
class Case:
    """A model on a layout."""

    size: str
    layout: Layout
    other: Layout | None = None
    """Layout of a resume with a different number of ranks."""

    @property
    def family(self) -> str:
        """The curve of the case: its size, and the axes that divide it."""
        kind = "HSDP" if self.layout.dp_replicate > 1 else "FSDP"
        others = (axis for axis in ("cp", "tp", "pp") if getattr(self.layout, axis) > 1)
        return " x ".join((f"{self.size} {kind}", *(axis.upper() for axis in others)))


CASES = (
    Case("8B", Layout(dp_shard=8), Layout(dp_shard=4)),
    Case("8B", Layout(dp_shard=64), Layout(dp_shard=32)),
    Case("8B", Layout(dp_shard=512), Layout(dp_shard=256)),
    Case("8B", Layout(dp_shard=4096), Layout(dp_shard=2048)),
    Case("8B", Layout(dp_replicate=2, dp_shard=4)),
    Case("8B", Layout(dp_replicate=8, dp_shard=8)),
    Case("8B", Layout(dp_replicate=8, dp_shard=64), Layout(dp_shard=64)),
    Case("8B", Layout(dp_replicate=64, dp_shard=64), Layout(dp_replicate=32, dp_shard=64)),
    Case("70B", Layout(dp_shard=64), Layout(dp_shard=8, tp=8)),
    Case("70B", Layout(dp_shard=64, tp=8), Layout(dp_shard=512)),
    Case("70B", Layout(dp_shard=4096), Layout(dp_shard=512, tp=8)),
    Case("70B", Layout(dp_replicate=8, dp_shard=64, tp=8), Layout(dp_replicate=8, dp_shard=64)),
    Case("405B", Layout(dp_shard=64, tp=8), Layout(dp_shard=512)),
    Case("405B", Layout(dp_shard=512, tp=8), Layout(dp_shard=32, tp=8, pp=8)),
    Case("405B", Layout(dp_replicate=2, dp_shard=32, tp=8, pp=8), Layout(dp_shard=64, tp=8)),
    Case("405B", Layout(dp_shard=64, cp=8, tp=8), Layout(dp_shard=64, cp=4, tp=8)),
    Case("405B", Layout(dp_shard=8), Layout(dp_shard=4)),
    Case("405B", Layout(dp_shard=64), Layout(dp_shard=32)),
    Case("405B", Layout(dp_shard=512), Layout(dp_shard=64, tp=8)),
    Case("405B", Layout(dp_shard=4096), Layout(dp_shard=512, tp=8)),
)
SMALL = (
    Case("debug", Layout(dp_shard=4), Layout(dp_shard=2)),
    Case("debug", Layout(dp_replicate=2, dp_shard=2), Layout(dp_shard=2)),
)


class Figures:
    """Measures cases, each rank in its own process."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool
        self.reached = True
        self.curves: dict[str, list[tuple[int, float]]] = {}
        self.dcp: dict[str, list[tuple[int, float]]] = {}

    def measure(self, case: Case) -> None:
        """Plan on three ranks; print the figures of the slowest."""
        size, layout = case.size, case.layout
        world_size = layout.world_size
        stages: list[Stage] = self._stages(size, layout)
        ranks = sorted({0, world_size // 2 + layout.tp // 2, world_size - 1})
        costs = [
            done.result()
            for done in [self._pool.submit(plan_cost, size, layout, r, stages) for r in ranks]
        ]
        first = max(cost.first_plan for cost in costs)
        details = {
            "model": size,
            "layout": str(layout),
            "ranks": world_size,
            "ranks_measured": ranks,
            "chunks": costs[0].chunks,
        }
        self._emit("first_plan", first, FIRST, details=details, named_bytes=costs[0].named_bytes)
        self._emit("later_plan", max(cost.later_plan for cost in costs), LATER, details=details)
        files = max(cost.resume_files for cost in costs)
        self._emit(
            "resume_plan", max(c.resume_plan for c in costs), RESUME, details=details, files=files
        )
        if case.other is not None:
            seconds = self._pool.submit(
                resharding_cost, size, layout, stages, case.other, case.other.world_size // 2
            ).result()
            self._emit("resharding_plan", seconds, RESUME, details=details, onto=str(case.other))
        self._emit(
            "commit",
            commit_bytes(case, costs[0]),
            COMMIT,
            unit="bytes that one process handles",
            details=details,
            index_bytes=costs[0].index_bytes,
            index_seconds=round(costs[0].index, 4),
        )
        self._emit(
            "evenness", max(c.even for c in costs), None, unit="of the mean load", details=details
        )
        self.curves.setdefault(case.family, []).append((world_size, first))
        if world_size <= YARDSTICK:
            self._yardstick(case, stages, first=first, details=details)

    def _yardstick(
        self, case: Case, stages: list[Stage], *, first: float, details: dict[str, object]
    ) -> None:
        cost: DcpCost = self._pool.submit(dcp_cost, stages, case.layout.world_size).result()
        self.dcp.setdefault(case.family, []).append((case.layout.world_size, cost.plan))
        self._emit(
            "first_plan_of_dcp",
            cost.plan,
            None,
            details=details,
            times_ours=round(cost.plan / first, 1),
            metadata_bytes=cost.metadata_bytes,
            metadata_seconds=round(cost.pickle, 4),
            gathered_bytes=cost.gathered_bytes,
        )

    def growth(self) -> None:
        """Print the growth of the first plan: the exponent of the ranks."""
        for family, points in self.curves.items():
            if len(points) < 3:
                continue
            ranks, seconds = np.log(np.array(points)).T
            exponent = float(np.polyfit(ranks, seconds, 1)[0])
            self._emit(
                "growth",
                exponent,
                None,
                details={"family": family, "points": points},
                unit="exponent of the ranks",
            )

    def picture(self) -> str:
        """Return an SVG of the first plans over the ranks, including DCP's."""
        caption = "First plan of a save, slowest rank"
        return log_picture(self.curves, caption=caption, yardstick=("DCP's plan", self.dcp))

    def stall(self, size: str, layout: Layout, *, bounded: bool) -> None:
        """Print how long a background save in memory blocks training."""
        seen: SaveStall = self._pool.submit(save_stall, size, layout, MEMORY, ROUNDS).result()
        self._emit(
            "save_stall",
            seen.share,
            STALL if bounded else None,
            details={"model": size, "layout": str(layout), "ranks": layout.world_size},
            unit="of a synchronous save's time, in which one in the background blocks training",
            rounds=ROUNDS,
            seconds={
                field.name: float(f"{getattr(seen, field.name):.4g}")
                for field in fields(seen)
                if field.name not in ("share", "state_bytes")
            },
            state_bytes=int(seen.state_bytes),
        )

    def descriptors(self, law: DescriptorLaw) -> None:
        """Print gloo's descriptors on the fullest rank, according to the law."""
        self._emit(
            "gloo_descriptors",
            law.at(DESCRIPTOR_RANKS),
            DESCRIPTORS,
            details={"ranks": DESCRIPTOR_RANKS, "measured": law.points},
            unit="descriptors of the fullest rank, extrapolated",
        )

    def _stages(self, size: str, layout: Layout) -> list[Stage]:
        count = layout.pp
        return list(self._pool.map(describe_stage, [size] * count, [layout] * count, range(count)))

    def _emit(
        self,
        name: str,
        figure: float,
        target: float | None,
        *,
        details: Mapping[str, object],
        unit: str = "processor seconds of the slowest rank",
        **more: object,
    ) -> None:
        self.reached &= emit(
            f"checkpoint_plans_{name}",
            figure=figure,
            unit=unit,
            target=target,
            at_least=False,
            packages=PACKAGES,
            **details,
            **more,
        )


def commit_bytes(case: Case, cost: PlanCost) -> int:
    """Return the bytes that rank 0 receives and writes at a commit, without its own tensors."""
    layout = case.layout
    files = tuple(
        ManifestFile(path=f"__{rank}_0.distcp", size=2**33 + rank, xxh3_128="a" * 32)
        for rank in range(layout.world_size)
    )
    records = tuple(
        ManifestWriter(rank=rank, size=2**33, files=1, write_seconds=math.pi)
        for rank in range(layout.world_size)
    )
    message = pickle.dumps((WrittenShare(files[-1], records[-1], 2**33), None))
    spec = job(case.size, layout)
    manifest = Manifest(
        checkpoint_id="job.a1.step-1",
        job_id="job",
        attempt=1,
        created_at=datetime.now(UTC),
        train_state=TrainState(step=1, tokens=1, data=DataState(dataset_digest="d" * 32)),
        layout=layout,
        seed=0,
        spec_digest=spec.digest,
        spec=spec,
        parent=None,
        kind="interval",
        param_dtype="float32",
        torch_version="2.13.0",
        save_seconds=1.0,
        files=files,
        writers=records,
    )
    # The manifest is written, and sent to all ranks.
    sent = len(manifest.model_dump_json(indent=2)) + len(pickle.dumps(manifest))
    return len(message) * layout.world_size + sent + cost.index_bytes


def main(words: Sequence[str] | None = None) -> int:
    """Measure all cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="a small model on four ranks")
    parser.add_argument("--ranks", type=int, help="only layouts of so many ranks")
    parser.add_argument("--to", type=Path, help="folder for a picture of the growth")
    given = parser.parse_args(words)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as pool:
        figures = Figures(pool)
        for case in SMALL if given.check else CASES:
            if given.ranks in (None, case.layout.world_size):
                figures.measure(case)
        size, layout = ("debug", Layout(dp_shard=4)) if given.check else STALLED
        if given.ranks in (None, layout.world_size):
            figures.stall(size, layout, bounded=not given.check)
    figures.growth()
    if given.check or given.ranks is None:
        sizes = (2, 4, 8) if given.check else RANKS
        figures.descriptors(descriptor_law(context, sizes))
    if given.to is not None:
        path = given.to / "checkpoint-plans.svg"
        path.write_text(figures.picture())
    return 0 if figures.reached else 1


if __name__ == "__main__":
    sys.exit(main())
