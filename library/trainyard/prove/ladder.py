"""The ladder: every check in its order, sized for ten minutes, an hour or a night."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from trainyard.prove.bench import Bench
from trainyard.prove.figures import Figure
from trainyard.prove.proof_lines import Time
from trainyard.prove.rungs.compared_strategies import strategy
from trainyard.prove.rungs.layouts import layout, layouts
from trainyard.prove.rungs.machine import machine, probe
from trainyard.prove.rungs.resumes import chain
from trainyard.prove.rungs.saves import save_and_load
from trainyard.prove.rungs.small_job import baseline
from trainyard.prove.strategies import ComparedStrategy, strategies
from trainyard.spec.auto import DeviceKind

SECONDS: dict[Time, float] = {"10m": 600.0, "1h": 3600.0, "8h": 28_800.0}
"""Time limit of the whole ladder, in seconds."""


PROBE_SECONDS = 120.0
"""Time limit of each rank of the probe, in seconds."""
DISK_MIB: dict[DeviceKind, int] = {"cpu": 64, "cuda": 1024}
"""Size of the file that the probe writes to each folder of a node, in MiB."""


@dataclass(frozen=True)
class LadderSize:
    """Sizes of the checks for a time limit."""

    steps: int
    """Steps of the small job on one rank, and of the chains."""
    layout_steps: int
    """Steps of the small job on other layouts."""
    links: tuple[int, ...]
    """Attempts of each chain."""
    strategy_steps: int
    """Steps of each strategy."""
    check_seconds: float
    """Time limit of one check, in seconds."""


SIZES: dict[DeviceKind, dict[Time, LadderSize]] = {
    "cpu": {
        "10m": LadderSize(
            steps=80, layout_steps=20, links=(4,), strategy_steps=10, check_seconds=180
        ),
        "1h": LadderSize(
            steps=200, layout_steps=100, links=(4, 6), strategy_steps=40, check_seconds=600
        ),
        "8h": LadderSize(
            steps=400, layout_steps=400, links=(8,) * 8, strategy_steps=100, check_seconds=3600
        ),
    },
    # A GPU trains the small job some twenty steps a second: a chain needs steps to be ended in.
    "cuda": {
        "10m": LadderSize(
            steps=300, layout_steps=100, links=(4,), strategy_steps=20, check_seconds=180
        ),
        "1h": LadderSize(
            steps=600, layout_steps=300, links=(4, 6), strategy_steps=60, check_seconds=600
        ),
        "8h": LadderSize(
            steps=2000, layout_steps=1000, links=(8,) * 12, strategy_steps=200, check_seconds=3600
        ),
    },
}


@dataclass(frozen=True)
class Check:
    """One check of the ladder."""

    stage: str
    """Group of the check in the report."""
    name: str
    """Name of the check, unique in the ladder."""
    run: Callable[[Bench], list[Figure]]
    """Runs the check, and returns figures with their bounds."""
    seconds: float
    """Time limit in seconds."""
    optional: bool = False
    """Whether the slots may not allow the check; its refusal is then no failure."""


def ladder(slots: int, device: DeviceKind, time: Time) -> list[Check]:
    """Return the checks for a number of slots, the most valuable first."""
    size = SIZES[device][time]

    def check(
        stage: str, name: str, run: Callable[[Bench], list[Figure]], *, optional: bool = False
    ) -> Check:
        return Check(stage, f"{stage}/{name}", run, size.check_seconds, optional)

    return [
        check("machine", "nodes", machine),
        check("machine", "probe", partial(probe, seconds=PROBE_SECONDS, disk_mib=DISK_MIB[device])),
        check("layouts", "one-rank", partial(baseline, steps=size.steps)),
        *(
            check(
                "layouts",
                name,
                partial(layout, name=name, steps=size.layout_steps, total_steps=size.steps),
                optional=True,
            )
            for name in layouts(slots)
        ),
        *(
            check(
                "resumes", f"chain-{seed}", partial(chain, count=count, steps=size.steps, seed=seed)
            )
            for seed, count in enumerate(size.links, start=1)
        ),
        check("saves", "bandwidth", save_and_load),
        *(
            check(
                "strategies",
                each.name.replace(" ", "-").lower(),
                partial(strategy, name=each.name, steps=size.strategy_steps),
                optional=True,
            )
            for each in sorted(strategies(slots, device=device), key=_compiles)
        ),
    ]


def _compiles(strategy: ComparedStrategy) -> bool:
    """Return whether a strategy compiles, which takes longest, so that it comes last."""
    return bool(strategy.document["compile"]["enabled"])
