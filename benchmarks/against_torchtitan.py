"""torchtitan's whole trainer and ours in turn on this machine: tokens/s on CPU ranks, or on a GPU.

On a CPU both train torchtitan's debug model (6 M parameters, sequence 512, 4 sequences a rank,
float32, no recomputation, one thread a rank, FSDP on two); on a GPU Llama 8B with weights,
gradients and moments in bfloat16, one sequence of 4,096 tokens: eager with all blocks recomputed,
and compiled with a memory budget of 0.8. Both are launched by torchrun, data and metrics included.
torchtitan is not one of our packages, so it comes with a Python of its own:

    python -m venv titan && titan/bin/pip install -c constraints.txt torch torchtitan==0.2.2
    python -m benchmarks.against_torchtitan titan/bin/python [--rounds 5] [--steps 20] [--cuda]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.launch import torchrun
from benchmarks.report import emit
from benchmarks.trainer import COMPILED, DEBUG, MOST_KEPT, TORCHTITAN, llama_8b, recompute
from trainer.process import prefer_growing_segments
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
hf_assets_path = "tokenizer"
[optimizer]
name = "AdamW"
lr = 1e-3
[lr_scheduler]
warmup_steps = 2
[training]
dataset = "c4_test"
"""


@dataclass(frozen=True)
class Way:
    """One way to train: what both trainers are told, and which of ours share their yardstick."""

    titan: tuple[str, ...]
    ours: tuple[tuple[str, dict[str, Any]], ...]
    """Names and specs."""
    target: float = 1.0
    """Least tokens/s of ours, as a multiple of torchtitan's."""
    ranks: tuple[int, ...] = (1,)
    threads: str | None = None
    """Threads of a rank; None leaves it to torch."""


ON_CPU = (
    Way(
        titan=(
            "--model.flavor=debugmodel",
            "--training.local_batch_size=4",
            "--training.seq_len=512",
            "--training.mixed_precision_param=float32",
            "--activation_checkpoint.mode=none",
        ),
        ours=(("eager", DEBUG), ("compiled", DEBUG | COMPILED)),
        ranks=tuple(TORCHTITAN),
        threads="1",
    ),
)
TITAN_8B = (
    "--model.flavor=8B",
    "--training.local_batch_size=1",
    "--training.seq_len=4096",
    "--training.dtype=bfloat16",
)
ON_CUDA = (
    Way(
        titan=(
            *TITAN_8B,
            "--compile.enable",
            "--activation_checkpoint.mode=memory_budget",
            "--activation_checkpoint.memory_budget=0.8",
        ),
        ours=(("compiled_8b", llama_8b(**COMPILED, **MOST_KEPT)),),
        target=1.05,
    ),
    Way(
        titan=(*TITAN_8B, "--activation_checkpoint.mode=full"),
        ours=(("eager_8b", llama_8b(**recompute("full"))),),
        target=1.05,
    ),
)


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


def train_titan(python: Path, folder: Path, ranks: int, steps: int, way: Way) -> float:
    """Return torchtitan's tokens/s a rank."""
    script = Path(__file__).parents[1] / "examples" / "programs" / "torchtitan" / "on_cpu.py"
    start = [str(script)] if way in ON_CPU else ["-m", "torchtitan.train"]
    command = [*start, "--job.config_file=job.toml", f"--training.steps={steps}", *way.titan]
    return middle(rates_in(_torchrun(python, ranks, command, folder, way.threads)))


def rates_in(printed: str) -> list[float]:
    """Return tokens/s of each step in torchtitan's log, in order."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", printed)
    # Every rank may print a line; a step has one rate.
    found = dict(re.findall(r"step: +(\d+) .*?tps: ([\d,]+)", plain))
    return [float(rate.replace(",", "")) for rate in found.values()]


def train_ours(folder: Path, ranks: int, steps: int, document: dict[str, Any], way: Way) -> float:
    """Return our trainer's tokens/s a rank."""
    training = document["training"]
    device = "cpu" if way in ON_CPU else "cuda"
    spec = document | {
        "training": {**training, "global_batch_size": training["micro_batch_size"] * ranks}
        | {"steps": steps, "log_every_steps": EVERY},
        "lr_schedule": {"warmup_steps": 2},
        "checkpoint": {"interval_steps": 0, "preflight": False},
        "resources": {"device": device, "world_size": ranks},
    }
    with tempfile.TemporaryDirectory(dir=folder) as name:
        run = Path(name)
        (run / "spec.json").write_text(json.dumps(spec))
        metrics = RunDirectory(run).metrics

        def trained() -> bool:
            return metrics.exists() and len(our_rates(metrics)) >= steps // EVERY

        words = ["-m", "trainer", name]
        # The last step is followed by a save: 45 GiB of the largest model, which are not measured.
        _torchrun(Path(sys.executable), ranks, words, Path.cwd(), way.threads, enough=trained)
        return middle(our_rates(metrics))


def our_rates(metrics: Path) -> list[float]:
    """Return tokens/s a rank of each complete line with a rate, in order."""
    lines = metrics.read_text().splitlines(keepends=True)
    values = [parse_record(MetricRecord, line).values for line in lines if line.endswith("\n")]
    return [v["perf/tokens_per_second_per_device"] for v in values if v]


def middle(rates: list[float]) -> float:
    """Return the median of the rates after the first two, in which a run warms up."""
    if len(rates) < 3:
        raise RuntimeError(f"{len(rates)} lines with a rate; take more steps")
    return statistics.median(rates[2:])


def _torchrun(
    python: Path,
    ranks: int,
    words: list[str],
    folder: Path,
    threads: str | None,
    *,
    enough: Callable[[], bool] = lambda: False,
) -> str:
    """Return what a launch printed, once it has ended or `enough` ended it."""
    environment = os.environ | {
        "GLOO_SOCKET_IFNAME": "lo",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_CACHE": str(folder / "cache"),
        # Modules in the folder of a script must not shadow a package.
        "PYTHONSAFEPATH": "1",
    }
    if threads is not None:
        environment["OMP_NUM_THREADS"] = threads
    prefer_growing_segments(environment)  # as both trainers advise
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        launched = subprocess.Popen(
            torchrun(ranks, *words, python=python),
            cwd=folder,
            env=environment,
            text=True,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            while launched.poll() is None and not enough():
                time.sleep(0.2)
            code = launched.poll()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(launched.pid, signal.SIGKILL)
            launched.wait()
        output.seek(0)
        printed = output.read()
    if code:
        raise RuntimeError(f"{' '.join(words)} ended with {code}:\n{printed[-4000:]}")
    return printed


def compare(python: Path, ways: Iterable[Way], rounds: int, steps: int) -> bool:
    """Train in turn, and print the ratio of ours to torchtitan's for each way to run them."""
    passed = True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_titan(folder)
        for way, ranks in ((each, count) for each in ways for count in each.ranks):
            rates = _train_in_turn(python, folder, way, ranks, rounds, steps)
            theirs = rates["torchtitan"]
            elsewhere = {"torchtitan_elsewhere": TORCHTITAN[ranks]} if way in ON_CPU else {}
            for kind, _ in way.ours:
                passed &= emit(
                    f"against_torchtitan_{kind}_{ranks}",
                    figure=statistics.median(
                        a / b for a, b in zip(rates[kind], theirs, strict=True)
                    ),
                    unit="our tokens/s of torchtitan's, median of the rounds",
                    target=way.target,
                    at_least=True,
                    packages=("torch",),
                    ranks=ranks,
                    ours=[round(rate) for rate in rates[kind]],
                    torchtitan=[round(rate) for rate in theirs],
                    steps=steps,
                    **elsewhere,
                )
    return passed


def _train_in_turn(
    python: Path, folder: Path, way: Way, ranks: int, rounds: int, steps: int
) -> dict[str, list[float]]:
    """Return the tokens/s a rank of each trainer, a figure a round."""
    trainers: list[tuple[str, Callable[[], float]]] = [
        ("torchtitan", lambda: train_titan(python, folder, ranks, steps, way)),
        *(
            (kind, partial(train_ours, folder, ranks, steps, document, way))
            for kind, document in way.ours
        ),
    ]
    rates: dict[str, list[float]] = {kind: [] for kind, _ in trainers}
    for number in range(rounds):
        first = number % len(trainers)  # the order alternates
        for kind, train in trainers[first:] + trainers[:first]:
            rates[kind].append(rate := train())
            print(f"round {number + 1}, {ranks} ranks, {kind}: {rate:.0f}", file=sys.stderr)
    return rates


def main() -> int:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("python", type=Path, help="an interpreter that has torchtitan")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--cuda", action="store_true", help="Llama 8B on a GPU")
    arguments = parser.parse_args()
    ways = ON_CUDA if arguments.cuda else ON_CPU
    python: Path = arguments.python.absolute()
    return 0 if compare(python, ways, arguments.rounds, arguments.steps) else 1


if __name__ == "__main__":
    sys.exit(main())
