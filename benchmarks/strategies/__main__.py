"""One model under each way to distribute and accelerate it: a table, and a picture of the losses.

Every strategy trains the same model from the same seed on the same data, launched by torchrun like
a job. On a CPU it is the debug model on up to eight ranks; on GPUs a Llama in bfloat16, on as many
layouts as the devices allow. Below the table are strategies that cannot run here, with the
planner's reason.

    python -m benchmarks.strategies [NAME ...] [--steps 30] [--to benchmarks/results]

Names and fewer steps make it small, as `"one rank" FSDP --steps 4`. Most time goes to compiling on
all ranks (`compile`, `float8`) and to the small messages of tensor parallelism (`2D`, `3D`).
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from benchmarks.launch import torchrun
from benchmarks.one_rank import StepCost, costs_of_a_step
from benchmarks.report import emit, machine, versions
from benchmarks.strategies.compared import slots_here, strategies_here
from benchmarks.strategies.table import Measured, NotRun, Results, picture, table
from trainyard.base.problems import SpecError
from trainyard.planner.plan import plan
from trainyard.protocol.record_parser import parse_record
from trainyard.prove.strategies import ComparedStrategy
from trainyard.run.directory import RunDirectory
from trainyard.run.records import MetricRecord
from trainyard.spec.job import JobSpec, parse_job_spec

PACKAGES = ("numpy", "torch", "torchao")
WARMUP = 0.25
"""Share of the steps excluded from the speed: they include compilation."""
TOLERANCE = {"float32": 1e-3, "bfloat16": 1e-2, "float8": 2e-2}
"""Tolerance of the final loss relative to the first strategy's, by type of the products."""


def compare(strategies: list[ComparedStrategy], steps: int) -> Results:
    """Train under each strategy in sequence, and print a line of JSON for each."""
    found: list[Measured] = []
    refused: list[NotRun] = []
    failed: list[NotRun] = []
    specs: dict[str, JobSpec] = {}
    for strategy in strategies:
        spec = parse_job_spec(strategy.with_steps(steps))
        reason = strategy.missing or _refusal(spec)
        if reason is not None:
            refused.append(NotRun(strategy.name, reason))
        else:
            specs[strategy.name] = spec
    costs = _costs(list(specs.values()))
    for (name, spec), cost in zip(specs.items(), costs, strict=True):
        try:
            found.append(_train(name, spec, cost))
        except RuntimeError as error:  # the others are still useful
            print(error, file=sys.stderr)
            failed.append(NotRun(name, str(error).partition("\n")[0]))
            continue
        _emit(found[-1], found[0].losses[-1], spec)
    kind = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return Results(
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        device=kind,
        machine=machine(),
        versions=versions(PACKAGES),
        model=strategies[0].words,
        steps=steps,
        passed=not failed and all(one.off <= one.tolerance for one in found),
        measured=found,
        not_run=[*refused, *failed],
    )


def _refusal(spec: JobSpec) -> str | None:
    """Return why the planner refuses a job on this machine; None if it does not."""
    try:
        plan(spec, slots=slots_here())
    except SpecError as error:
        return str(error)
    return None


def _costs(specs: list[JobSpec]) -> list[StepCost]:
    """Return the costs of the fullest rank of each job; all are counted concurrently."""
    # The ends of a pipeline hold and send most: they have embedding and head.
    ends = [sorted({0, s.layout().world_size - 1}) if s.layout().pp > 1 else [0] for s in specs]
    cases = [(spec, rank) for spec, ranks in zip(specs, ends, strict=True) for rank in ranks]
    counted = iter(costs_of_a_step(cases))
    costs = []
    for ranks in ends:
        of_a_job = [next(counted) for _ in ranks]
        most = max(of_a_job, key=lambda cost: sum(cost.sent.values()))
        costs.append(StepCost(most.sent, max(cost.peak for cost in of_a_job)))
    return costs


def _train(name: str, spec: JobSpec, cost: StepCost) -> Measured:
    """Launch a job like the worker, and read its records.

    Raises:
        RuntimeError: the launch failed.
    """
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as folder:
        run = RunDirectory(Path(folder))
        run.spec.write_text(spec.model_dump_json(), encoding="utf-8")
        load = os.getloadavg()[0]
        launched = subprocess.run(
            torchrun(spec.resources.world_size, "-m", "trainer", folder),
            env={"OMP_NUM_THREADS": "1", **os.environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if launched.returncode:
            raise RuntimeError(f"its launch failed:\n{launched.stdout[-4000:]}")
        text = run.metrics.read_text(encoding="utf-8")
    lines = [parse_record(MetricRecord, line) for line in text.splitlines()]
    values = {line.step: line.values for line in lines if "train/loss" in line.values}
    steady = [v for step, v in values.items() if step > WARMUP * max(values)]
    rates = [v["perf/compute_tokens_per_second_per_device"] for v in steady]
    resident = "memory/peak_reserved_gib" if torch.cuda.is_available() else "memory/peak_rss_gib"
    layout = spec.layout()
    return Measured(
        name=name,
        layout=str(layout),
        ranks=layout.world_size,
        tokens_per_second=statistics.median(rates),
        peak_gib=max(v[resident] for v in values.values()),
        tensors_mib=cost.peak / 2**20,
        sent_bytes=cost.sent,
        losses=[v["train/loss"] for v in values.values()],
        load=round((load + os.getloadavg()[0]) / 2, 1),
    )


def _emit(one: Measured, reference: float, spec: JobSpec) -> None:
    """Print one strategy, and note the tolerance of its final loss."""
    numbers = spec.training.param_dtype if spec.quantization.recipe == "none" else "float8"
    one.tolerance = TOLERANCE[numbers]
    one.off = abs(one.losses[-1] / reference - 1)
    one.off = one.off if math.isfinite(one.off) else math.inf
    emit(
        f"strategies_{one.name.replace(' ', '_')}",
        figure=one.off,
        unit="final loss, relative to that of the first strategy",
        target=one.tolerance,
        at_least=False,
        packages=PACKAGES,
        layout=one.layout,
        tokens_per_second_per_device=round(one.tokens_per_second),
        peak_gib=round(one.peak_gib, 3),
        tensors_mib=round(one.tensors_mib, 2),
        sent_bytes=one.sent_bytes,
        loss=round(one.losses[-1], 5),
    )


def main() -> int:
    """Compare, and write table, figures and picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="strategies, the first one is the reference")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--to", type=Path, help="folder for table, JSON and picture")
    given = parser.parse_args()
    known = {strategy.name: strategy for strategy in strategies_here()}
    if unknown := [name for name in given.names if name not in known]:
        parser.error(f"no strategy {', '.join(unknown)}; there are {', '.join(known)}")
    results = compare([known[name] for name in given.names or known], given.steps)
    print(table(results))
    if given.to is not None:
        given.to.mkdir(parents=True, exist_ok=True)
        name = "strategies-" + results.device.lower().replace(" ", "-")
        written = {".md": table(results), ".svg": picture(results)}
        written[".json"] = json.dumps(results.as_json(), indent=1) + "\n"
        for ending, text in written.items():
            (given.to / f"{name}{ending}").write_text(text, encoding="utf-8")
    return 0 if results.passed else 1


if __name__ == "__main__":
    sys.exit(main())
