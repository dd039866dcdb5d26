"""torchtitan's whole trainer and ours in turn on this machine: tokens/s on one CPU rank and on two.

Both train torchtitan's debug model (6 M parameters, sequence 512, 4 sequences a rank, float32, no
recomputation, one thread a rank, FSDP on two), launched by torchrun, data and metrics included.
torchtitan is not one of our packages, so it comes with a Python of its own:

    python -m venv titan && titan/bin/pip install -c constraints.txt torch torchtitan==0.2.2
    python -m benchmarks.against_torchtitan titan/bin/python [--rounds 5] [--steps 20]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.launch import torchrun
from benchmarks.report import emit
from benchmarks.trainer import COMPILED, DEBUG, TORCHTITAN
from trainyard.protocol.record_parser import parse_record
from trainyard.run.directory import RunDirectory
from trainyard.run.records import MetricRecord

EVERY = 5
"""Steps between two lines with a rate; the first two lines of a run are left out."""
TITAN = f"""
[job]
dump_folder = "out"
[metrics]
log_freq = {EVERY}
[model]
name = "llama3"
flavor = "debugmodel"
hf_assets_path = "tokenizer"
[optimizer]
name = "AdamW"
lr = 1e-3
[lr_scheduler]
warmup_steps = 2
[training]
local_batch_size = 4
seq_len = 512
dataset = "c4_test"
mixed_precision_param = "float32"
[activation_checkpoint]
mode = "none"
"""


def write_titan(folder: Path) -> None:
    """Write what torchtitan trains: its configuration, a text, and a tokenizer of bytes."""
    (folder / "job.toml").write_text(TITAN)
    corpus = folder / "tests" / "assets" / "c4_test"
    corpus.mkdir(parents=True)
    numbers = np.random.default_rng(0).integers(10_000, size=(2_000, 400))
    with (corpus / "data.json").open("w") as lines:
        lines.writelines(json.dumps({"text": " ".join(map(str, row))}) + "\n" for row in numbers)
    tokenizer = folder / "tokenizer"
    tokenizer.mkdir()
    signs = ["<s>", "</s>", *(chr(code) for code in range(32, 127))]
    model = {"type": "BPE", "vocab": {sign: i for i, sign in enumerate(signs)}, "merges": []}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [{"id": i, "content": signs[i], "special": True, **special} for i in range(2)]
    (tokenizer / "tokenizer.json").write_text(
        json.dumps({"version": "1.0", "added_tokens": added, "model": model})
    )
    (tokenizer / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": signs[0], "eos_token": signs[1]})
    )


def train_titan(python: Path, folder: Path, ranks: int, steps: int, *words: str) -> float:
    """Return torchtitan's tokens/s a rank."""
    script = Path(__file__).parents[1] / "examples" / "programs" / "torchtitan" / "on_cpu.py"
    command = [f"--training.steps={steps}", "--job.config_file=job.toml", *words]
    return middle(rates_in(_torchrun(python, ranks, [str(script), *command], folder)))


def rates_in(printed: str) -> list[float]:
    """Return tokens/s of each step in torchtitan's log, in order."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", printed)
    # Every rank may print a line; a step has one rate.
    found = dict(re.findall(r"step: +(\d+) .*?tps: ([\d,]+)", plain))
    return [float(rate.replace(",", "")) for rate in found.values()]


def train_ours(folder: Path, ranks: int, steps: int, sections: dict[str, Any]) -> float:
    """Return our trainer's tokens/s a rank."""
    spec = DEBUG | {
        "training": {**DEBUG["training"], "global_batch_size": 4 * ranks, "steps": steps}
        | {"log_every_steps": EVERY},
        "lr_schedule": {"warmup_steps": 2},
        "checkpoint": {"interval_steps": 0, "preflight": False},
        "resources": {"device": "cpu", "world_size": ranks},
    }
    with tempfile.TemporaryDirectory(dir=folder) as name:
        run = Path(name)
        (run / "spec.json").write_text(json.dumps(spec | sections))
        _torchrun(Path(sys.executable), ranks, ["-m", "trainer", name], Path.cwd())
        lines = RunDirectory(run).metrics.read_text().splitlines()
    values = [parse_record(MetricRecord, line).values for line in lines]
    rates = [v["perf/tokens_per_second_per_device"] for v in values if v]
    return middle(rates)


def middle(rates: list[float]) -> float:
    """Return the median of the rates after the first two, in which a run warms up."""
    if len(rates) < 3:
        raise RuntimeError(f"{len(rates)} lines with a rate; take more steps")
    return statistics.median(rates[2:])


def _torchrun(python: Path, ranks: int, words: list[str], folder: Path) -> str:
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_CACHE": str(folder / "cache"),
        # Modules in the folder of a script must not shadow a package.
        "PYTHONSAFEPATH": "1",
    }
    done = subprocess.run(
        torchrun(ranks, *words, python=python),
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout[-4000:]}"
        )
    return done.stdout


def compare(python: Path, rounds: int, steps: int) -> bool:
    """Train in turn, and print the ratio of ours to torchtitan's for each way to run them."""
    rates: dict[tuple[int, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_titan(folder)
        trainers: list[tuple[str, Callable[[int], float]]] = [
            ("torchtitan", lambda ranks: train_titan(python, folder, ranks, steps)),
            ("eager", lambda ranks: train_ours(folder, ranks, steps, {})),
            ("compiled", lambda ranks: train_ours(folder, ranks, steps, COMPILED)),
        ]
        for number, ranks in product(range(rounds), TORCHTITAN):
            first = number % len(trainers)  # the order alternates
            for kind, train in trainers[first:] + trainers[:first]:
                rate = train(ranks)
                print(f"round {number + 1}, {ranks} ranks, {kind}: {rate:.0f}", file=sys.stderr)
                rates.setdefault((ranks, kind), []).append(rate)
    passed = True
    for ranks, elsewhere in TORCHTITAN.items():
        theirs = rates[ranks, "torchtitan"]
        for kind in ("eager", "compiled"):
            ours = rates[ranks, kind]
            passed &= emit(
                f"against_torchtitan_{kind}_{ranks}",
                figure=statistics.median(a / b for a, b in zip(ours, theirs, strict=True)),
                unit="our tokens/s of torchtitan's, median of the rounds",
                target=1.0,
                at_least=True,
                packages=("torch",),
                ranks=ranks,
                ours=[round(rate) for rate in ours],
                torchtitan=[round(rate) for rate in theirs],
                torchtitan_elsewhere=elsewhere,
                steps=steps,
            )
    return passed


def main() -> int:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("python", type=Path, help="an interpreter that has torchtitan")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    return 0 if compare(arguments.python.absolute(), arguments.rounds, arguments.steps) else 1


if __name__ == "__main__":
    sys.exit(main())
