"""Processor time of an attempt of one step: eager, compiled cold, and with earlier jobs' kernels.

Each attempt is a separate process on one rank, prepared like a worker's: caches in the run
directory, and the node's archives of compiled kernels. The compilers' time counts, including their
child processes. Cold and warm attempts alternate. `stall_seconds` is the wait of the first update
for the preflight save, which runs during the compilation.

    python -m benchmarks.start.first_step [--rounds 7] [--layers 6]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import emit
from trainyard.protocol.attempt import AttemptSpec
from trainyard.protocol.record_parser import parse_record
from trainyard.run.directory import RunDirectory
from trainyard.run.records import MetricRecord
from trainyard.spec.layout import Layout

PACKAGES = ("torch",)
ARCHIVE = "kernels.zip"
TARGET_SHARE = 0.6
"""Limit of a warm attempt's processor time, as a share of a cold one's."""
SHAPE = {"dim": 256, "n_heads": 8, "n_kv_heads": 4, "ffn_dim": 1024}


@dataclass(frozen=True)
class Start:
    """Measurements of an attempt of one step."""

    processor_seconds: float
    step_seconds: float
    stall_seconds: float
    loss: float


def spec(*, layers: int, compiled: bool) -> dict[str, Any]:
    """Return a job of one step."""
    return {
        "name": "first-step",
        "model": {**SHAPE, "n_layers": layers},
        "training": {"steps": 1, "seq_len": 256, "global_batch_size": 2, "micro_batch_size": 2},
        "lr_schedule": {"warmup_steps": 0},
        "compile": {"enabled": compiled},
        "resources": {"device": "cpu"},
    }


def start(folder: Path, document: dict[str, Any], *, kernels: Path, tokens: Path) -> Start:
    """Run an attempt to its end, and keep its archive of kernels, as a worker does."""
    folder.mkdir()
    run = RunDirectory(folder)
    attempt = AttemptSpec(
        job_id="first-step",
        layout=Layout(),
        roots={"checkpoints": str(folder / "checkpoints")},
        cache_dir=str(tokens),
        kernel_cache=str(kernels / ARCHIVE),
    )
    run.spec.write_text(json.dumps(document), encoding="utf-8")
    run.attempt.write_text(attempt.model_dump_json(), encoding="utf-8")
    caches = {
        "TORCHINDUCTOR_CACHE_DIR": str(run.kernels),
        "TRITON_CACHE_DIR": str(run.kernels / "triton"),
        "OMP_NUM_THREADS": "1",
    }
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "trainer", str(folder)],
            env=os.environ | caches,
            stdout=log,
            stderr=log,
        )
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError((folder / "log").read_text(encoding="utf-8"))
    archive = Path(run.kernel_archive)
    if archive.exists() and archive.stat().st_size:
        archive.replace(kernels / ARCHIVE)
    line = parse_record(MetricRecord, run.metrics.read_text(encoding="utf-8").splitlines()[0])
    return Start(
        processor_seconds=used.ru_utime + used.ru_stime,
        step_seconds=line.values["perf/step_seconds"],
        stall_seconds=line.values["checkpoint/stall_seconds"],
        loss=line.values["train/loss"],
    )


def measure(folder: Path, *, rounds: int, layers: int, start: Callable[..., Start] = start) -> bool:
    """Alternate eager, cold and warm attempts; print the figure. `start` runs one attempt."""
    kernels = folder / "kernels"
    found: dict[str, list[Start]] = {"eager": [], "cold": [], "warm": []}
    for number in range(rounds + 1):  # the first round also caches tokens and does not count
        for kind, starts in found.items():
            if kind == "cold":
                shutil.rmtree(kernels, ignore_errors=True)
            kernels.mkdir(exist_ok=True)
            document = spec(layers=layers, compiled=kind != "eager")
            run = folder / f"{kind}-{number}"
            starts.append(start(run, document, kernels=kernels, tokens=folder / "tokens"))
            shutil.rmtree(run)
    losses = {kind: {each.loss for each in starts} for kind, starts in found.items()}
    assert losses["cold"] == losses["warm"], "kernels from an archive compute the same"
    counted = {kind: starts[1:] for kind, starts in found.items()}
    shares = [
        warm.processor_seconds / cold.processor_seconds
        for cold, warm in zip(counted["cold"], counted["warm"], strict=True)
    ]
    details = {
        f"{kind}_{name}": [round(getattr(each, name), 3) for each in starts]
        for kind, starts in counted.items()
        for name in ("processor_seconds", "step_seconds", "stall_seconds")
    }
    return emit(
        "first_step_with_kernels_of_earlier_jobs",
        figure=statistics.median(shares),
        unit="of the processor time of a cold attempt (median of pairs)",
        target=TARGET_SHARE,
        at_least=False,
        packages=PACKAGES,
        **details,
        layers=layers,
        rounds=rounds,
    )


def main(words: list[str] | None = None) -> int:
    """Measure in a temporary folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--layers", type=int, default=6)
    given = parser.parse_args(words)
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as name:
        return 0 if measure(Path(name), rounds=given.rounds, layers=given.layers) else 1


if __name__ == "__main__":
    sys.exit(main())
