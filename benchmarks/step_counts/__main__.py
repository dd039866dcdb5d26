"""Counts a step of Llama 8B on eight fake ranks, of ours and of torchtitan 0.3.0.

The counts depend only on shapes and code, and are the same on every machine (docs/performance.md
lists them). Without an interpreter that has torchtitan (`benchmarks.against_torchtitan`) only ours
are printed.

    python -m benchmarks.step_counts [PYTHON] [--layers 32]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.one_rank import in_processes
from benchmarks.report import emit
from benchmarks.step_counts.trainer_step import count

RANKS, SEQ_LEN = 8, 2048
BACKEND = "--parallelism.spmd_backend=partial_dtensor"
"""The FSDP of torch 2.13 cannot read the annotations of the default, `spmd_types`."""
ROOT = Path(__file__).parents[2]
COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast")
NOT_ABOVE = (
    "collectives",
    "collective bytes",
    "host syncs",
    "host-device copies",
    "copied bytes",
    "cast bytes",
)
"""Counts in which ours must not exceed torchtitan's."""


@dataclass(frozen=True)
class Case:
    """A layout, in both trainers' settings."""

    axes: dict[str, int]
    options: tuple[str, ...]
    sequences: int
    """Sequences of a step, one per data-parallel rank."""


CASES = {
    "fsdp_8": Case({}, (), 8),
    "tp_8": Case({"tp": 8}, ("--parallelism.tensor_parallel_degree=8",), 1),
    "hsdp_2x4": Case(
        {"dp_replicate": 2, "dp_shard": 4},
        ("--parallelism.data_parallel_replicate_degree=2",),
        8,
    ),
}


def document(case: Case, layers: int) -> dict[str, Any]:
    """Return our spec of a case."""
    return {
        "model": {"size": "8B", "n_layers": layers},
        "training": {"seq_len": SEQ_LEN, "micro_batch_size": 1}
        | {"global_batch_size": case.sequences, "param_dtype": "bfloat16"},
        "parallelism": case.axes,
        "lr_schedule": {"warmup_steps": 0},
        "resources": {"world_size": RANKS, "device": "cpu"},
    }


def count_torchtitan(python: Path, case: Case, layers: int) -> dict[str, Any]:
    """Return torchtitan's counts of a case.

    Raises:
        RuntimeError: the count failed; the message has the end of the interpreter's output.
    """
    options = [BACKEND, *case.options, "activation_checkpoint:none"]
    shape = {"layers": layers, "sequences": 1, "seq_len": SEQ_LEN}
    words = json.dumps({"ranks": RANKS, "options": options, **shape})
    # The interpreter's own PYTHONPATH is kept.
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    with tempfile.TemporaryDirectory() as folder:
        ended = subprocess.run(
            [str(python), "-m", "benchmarks.step_counts.torchtitan_step", words],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": path},
            check=False,
            capture_output=True,
            text=True,
        )
    if ended.returncode:
        raise RuntimeError(f"torchtitan was not counted:\n{ended.stderr[-4000:]}")
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def with_totals(counts: dict[str, int]) -> dict[str, int]:
    """Return the counts with totals of all collectives."""
    return counts | {
        "collectives": sum(counts.get(kind, 0) for kind in COLLECTIVES),
        "collective bytes": sum(counts.get(f"{kind} bytes", 0) for kind in COLLECTIVES),
    }


def above(ours: dict[str, int], theirs: dict[str, int]) -> dict[str, list[int]]:
    """Return the counts in which ours exceeds torchtitan's, with both values."""
    pairs = {name: [ours.get(name, 0), theirs.get(name, 0)] for name in NOT_ABOVE}
    return {name: pair for name, pair in pairs.items() if pair[0] > pair[1]}


def compare(layers: int, python: Path | None) -> bool:
    """Print the counts of each case, and those in which ours exceeds torchtitan's."""
    passed = True
    found = in_processes(count, [(document(case, layers),) for case in CASES.values()])
    for (name, case), ours in zip(CASES.items(), found, strict=True):
        counted = {"trainyard": ours}
        if python is not None:
            counted["torchtitan"] = count_torchtitan(python, case, layers)
        totals = {who: with_totals(each["counts"]) for who, each in counted.items()}
        for who, each in counted.items():
            emit(
                f"step_counts_{name}_{who}",
                figure=each["counts"]["operations"],
                unit="device operations of a rank in a step",
                packages=("torch",),
                layers=layers,
                seq_len=SEQ_LEN,
                counts=dict(sorted(totals[who].items())),
                operations=dict(sorted(each["operations"].items())),
            )
        if python is not None:
            excess = above(totals["trainyard"], totals["torchtitan"])
            passed &= emit(
                f"step_counts_{name}_above",
                figure=len(excess),
                unit="counts of ours above torchtitan's",
                target=0,
                at_least=False,
                packages=("torch",),
                excess=excess,
            )
    return passed


def main() -> int:
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("python", type=Path, nargs="?", help="an interpreter that has torchtitan")
    parser.add_argument("--layers", type=int, default=32, help="blocks of the Llama 8B")
    arguments = parser.parse_args()
    python = None if arguments.python is None else arguments.python.absolute()
    return 0 if compare(arguments.layers, python) else 1


if __name__ == "__main__":
    sys.exit(main())
