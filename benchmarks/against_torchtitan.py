"""Alternates torchtitan's whole trainer and ours on this machine, on CPU ranks or on a GPU.

Both are measured from outside in the same way: tokens/s, tokens per second of processor time of all
ranks, and the time from the launch to the line of the first step. On a CPU both train torchtitan's
debug model (6 M parameters, sequence 512, 4 sequences a rank, float32, no recomputation, one thread
a rank, FSDP on two). On a GPU both train Llama 8B with weights, gradients and moments in bfloat16
and one sequence of 4,096 tokens: eager with all blocks recomputed, and compiled with a memory
budget of 0.8. torchrun launches both, data and metrics included. torchtitan keeps its defaults,
including the loss in eight chunks and, on a GPU, CUDA graphs, with these exceptions: the backend
`partial_dtensor` (the FSDP of torch 2.13 cannot read the annotations of `spmd_types`), no profiler
and no TensorBoard. On a CPU, `on_cpu.py` of examples/programs adds what it lacks. torchtitan is not
one of our packages, so it needs its own Python:

    make .venv-titan/.torchtitan-0.3.0
    python -m benchmarks.against_torchtitan .venv-titan/bin/python [--way eager | --cuda]
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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.launch import Mark, launch_and_watch, torchrun
from benchmarks.report import emit
from benchmarks.trainer import COMPILED, DEBUG, MAX_KEPT, llama_8b, recompute
from trainer.process import prefer_growing_segments
from trainyard.protocol.record_parser import parse_record
from trainyard.run.directory import RunDirectory
from trainyard.run.records import MetricRecord

EVERY = 5
"""Steps between two lines. Times start at the second line, because a run warms up before."""
TITAN = (
    "--module=llama3",
    "--dump_folder=out",
    "--hf_assets_path=tokenizer",
    "--dataloader.dataset=c4_test",
    "--lr_scheduler.warmup_steps=2",
    "--parallelism.spmd_backend=partial_dtensor",
    "--profiler.no_enable_profiling",
    "--metrics.no_enable_tensorboard",
    f"--metrics.log_freq={EVERY}",
)


@dataclass(frozen=True)
class Way:
    """One way to train: both trainers' settings, and our targets."""

    name: str
    titan: tuple[str, ...]
    """Options of torchtitan, with a subcommand last."""
    ours: dict[str, Any]
    """Sections of our spec."""
    targets: dict[str, float]
    """Targets by field of `Speed`: ours as a multiple of torchtitan's."""
    on_cpu: bool = False
    ranks: tuple[int, ...] = (1,)


@dataclass(frozen=True)
class Speed:
    """Speed of one run of a trainer."""

    wall: float
    """Tokens/s of a rank."""
    processor: float
    """Tokens per second of processor time of all ranks."""
    start: float
    """Seconds from the launch to the line of the first step."""


TITAN_DEBUG = (
    "--config=llama3_debugmodel",
    "--training.local_batch_size=4",
    "--training.seq_len=512",
    "--training.mixed_precision_param=float32",
    "--training.disable_cuda_graphs",
)
NO_RECOMPUTATION = "activation_checkpoint:none"
ON_CPU = (
    Way(
        "eager",
        titan=(*TITAN_DEBUG, NO_RECOMPUTATION),
        ours=DEBUG,
        targets={"processor": 1.05, "start": 0.5},
        on_cpu=True,
        ranks=(1, 2),
    ),
    Way(
        "compiled",
        titan=(*TITAN_DEBUG, "--compile.enable", NO_RECOMPUTATION),
        ours=DEBUG | COMPILED,
        targets={"processor": 1.1},
        on_cpu=True,
        ranks=(1, 2),
    ),
)
TITAN_8B = (
    "--config=llama3_8b",
    "--training.local_batch_size=1",
    "--training.seq_len=4096",
    "--training.dtype=bfloat16",
)
ON_CUDA = (
    Way(
        "compiled_8b",
        titan=(
            *TITAN_8B,
            "--compile.enable",
            "activation_checkpoint:memory_budget",
            "--activation_checkpoint.memory_budget=0.8",
        ),
        ours=llama_8b(**COMPILED, **MAX_KEPT),
        targets={"wall": 1.05},
    ),
    Way(
        "eager_8b",
        titan=(*TITAN_8B, "activation_checkpoint:full"),
        ours=llama_8b(**recompute("full")),
        targets={"wall": 1.05},
    ),
)
WAYS = {way.name: way for way in ON_CPU + ON_CUDA}


def version_of(python: Path) -> str:
    """Return the torchtitan version of an interpreter."""
    words = [str(python), "-c", "import importlib.metadata as m; print(m.version('torchtitan'))"]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


def write_titan(folder: Path) -> None:
    """Write torchtitan's training input: a text, and a tokenizer of bytes.

    Documents are longer than a sequence, because attention on a GPU ignores other documents.
    """
    corpus = folder / "tests" / "assets" / "c4_test"
    corpus.mkdir(parents=True)
    numbers = np.random.default_rng(0).integers(10_000, size=(200, 4_000))
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


def train_titan(python: Path, folder: Path, *, ranks: int, steps: int, way: Way) -> Speed:
    """Train torchtitan; return its speed."""
    return speed(titan_marks(python, folder, ranks=ranks, steps=steps, way=way), ranks, way)


def titan_marks(python: Path, folder: Path, *, ranks: int, steps: int, way: Way) -> list[Mark]:
    """Launch torchtitan in a folder of `write_titan`; return the times of its lines."""
    script = Path(__file__).parents[1] / "examples" / "programs" / "torchtitan" / "on_cpu.py"
    start = [str(script)] if way.on_cpu else ["-m", "torchtitan.train"]
    words = [*start, *TITAN, f"--training.steps={steps}", *way.titan]
    return _train(python, ranks, words, folder, way, steps, done=steps_in)


def steps_in(printed: str) -> int:
    """Return the last step in torchtitan's log; 0 before the first one."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", printed)
    return max((int(step) for step in re.findall(r"step: +(\d+) .*?tps: ", plain)), default=0)


def train_ours(folder: Path, ranks: int, *, steps: int, way: Way) -> Speed:
    """Train with our trainer; return its speed."""
    spec = spec_of(way, ranks, steps=steps, log_every=EVERY)
    spec["checkpoint"] = {"interval_steps": 0, "preflight": False}
    with tempfile.TemporaryDirectory(dir=folder) as name:
        run = Path(name)
        (run / "spec.json").write_text(json.dumps(spec))
        metrics = RunDirectory(run).metrics
        words = ["-m", "trainer", name]
        # A save follows the last step: 45 GiB for the largest model, which is not measured.
        marks = _train(
            Path(sys.executable),
            *(ranks, words, Path.cwd(), way, steps),
            done=lambda _printed: last_step(metrics),
        )
    return speed(marks, ranks, way)


def spec_of(way: Way, ranks: int, *, steps: int, log_every: int) -> dict[str, Any]:
    """Return our job for a way to train."""
    training = way.ours["training"]
    return way.ours | {
        "training": {**training, "global_batch_size": training["micro_batch_size"] * ranks}
        | {"steps": steps, "log_every_steps": log_every},
        "lr_schedule": {"warmup_steps": 2},
        "resources": {"device": "cpu" if way.on_cpu else "cuda", "world_size": ranks},
    }


def last_step(metrics: Path) -> int:
    """Return the step of the last complete line with values; 0 before the first one."""
    if not metrics.exists():
        return 0
    lines = metrics.read_text().splitlines(keepends=True)
    records = [parse_record(MetricRecord, line) for line in lines if line.endswith("\n")]
    return max((record.step for record in records if record.values), default=0)


def speed(marks: Sequence[Mark], ranks: int, way: Way) -> Speed:
    """Return the rates from the second line to the last one."""
    if len(marks) < 3:
        raise RuntimeError(f"{len(marks)} lines; take more steps")
    begun, ended = marks[1], marks[-1]
    training = way.ours["training"]
    tokens = (ended.step - begun.step) * training["micro_batch_size"] * training["seq_len"]
    return Speed(
        wall=tokens / (ended.seconds - begun.seconds),
        processor=tokens * ranks / (ended.processor_seconds - begun.processor_seconds),
        start=marks[0].seconds,
    )


def _train(
    python: Path,
    ranks: int,
    words: list[str],
    folder: Path,
    way: Way,
    steps: int,
    *,
    done: Callable[[str], int],
) -> list[Mark]:
    environment = os.environ | {
        "GLOO_SOCKET_IFNAME": "lo",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_CACHE": str(folder / "cache"),
        # Modules in the folder of a script must not shadow a package.
        "PYTHONSAFEPATH": "1",
        # Installed packages have bytecode; without this our own files would be compiled in each
        # run.
        "PYTHONDONTWRITEBYTECODE": "",
    }
    if way.on_cpu:
        environment["OMP_NUM_THREADS"] = "1"
    prefer_growing_segments(environment)  # as both trainers recommend
    command = torchrun(ranks, *words, python=python)
    return launch_and_watch(command, folder, environment, done=done, until=steps)


def compare(python: Path, ways: Iterable[Way], *, rounds: int, steps: int) -> bool:
    """Train alternately, and print the ratios of ours to torchtitan's for each way to train."""
    passed, version = True, version_of(python)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_titan(folder)
        for way, ranks in ((each, count) for each in ways for count in each.ranks):
            theirs, ours = _train_in_turn(
                python, folder, way=way, ranks=ranks, rounds=rounds, steps=steps
            )
            for kind in ("processor", "wall", "start") if way.on_cpu else ("wall",):
                mine, titans = ([getattr(run, kind) for run in runs] for runs in (ours, theirs))
                passed &= emit(
                    f"against_torchtitan_{way.name}_{ranks}_{kind}",
                    figure=statistics.median(a / b for a, b in zip(mine, titans, strict=True)),
                    unit=UNITS[kind],
                    target=way.targets.get(kind),
                    at_least=kind != "start",
                    packages=("torch",),
                    torchtitan_version=version,
                    ranks=ranks,
                    ours=[round(value, 2) for value in mine],
                    torchtitan=[round(value, 2) for value in titans],
                    steps=steps,
                )
    return passed


UNITS = {
    "wall": "our tokens/s of torchtitan's, median of the rounds",
    "processor": "our tokens per second of processor time of torchtitan's, median of the rounds",
    "start": "our time to the first step of torchtitan's, median of the rounds",
}


def _train_in_turn(
    python: Path, folder: Path, *, way: Way, ranks: int, rounds: int, steps: int
) -> tuple[list[Speed], list[Speed]]:
    """Return the speeds of torchtitan and of ours, one run of each per round."""
    trainers: list[Callable[[], Speed]] = [
        partial(train_titan, python, folder, ranks=ranks, steps=steps, way=way),
        partial(train_ours, folder, ranks, steps=steps, way=way),
    ]
    runs: tuple[list[Speed], list[Speed]] = ([], [])
    for number in range(rounds):
        for which in (0, 1) if number % 2 else (1, 0):  # the order alternates
            runs[which].append(trainers[which]())
        print(f"{way.name}, {ranks} ranks:", *(each[-1] for each in runs), file=sys.stderr)
    return runs


def main() -> int:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("python", type=Path, help="an interpreter that has torchtitan")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--cuda", action="store_true", help="Llama 8B on a GPU")
    parser.add_argument("--way", action="append", choices=WAYS, help="only these, of either device")
    arguments = parser.parse_args()
    ways: Iterable[Way] = ON_CUDA if arguments.cuda else ON_CPU
    if arguments.way:
        ways = [WAYS[name] for name in arguments.way]
    python: Path = arguments.python.absolute()
    return 0 if compare(python, ways, rounds=arguments.rounds, steps=arguments.steps) else 1


if __name__ == "__main__":
    sys.exit(main())
