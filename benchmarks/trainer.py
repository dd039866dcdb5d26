"""Speed and memory of a training step, in each way to run our trainer.

On a CPU the model is torchtitan's debug model (6 M parameters, sequence 512, local batch 4,
float32, one thread a rank), on one rank and with FSDP on two. On a GPU of 80 GB it is Llama 1B and
3B in bfloat16 with weights in float32, and 8B with weights and moments in bfloat16, which only fits
this way. Each case runs in its own process, so that its memory peak is its own.
`benchmarks.trainer_overhead` compares with a bare loop.

    python -m benchmarks.trainer [CASE ...] [--steps 20] > benchmarks/results/trainer-h100.jsonl
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.bare_llama import BareLlama
from benchmarks.launch import torchrun
from benchmarks.report import Line, emit, run_and_relay
from trainer.data.batches import MicroBatch
from trainer.kernels.cpu_products import fast_products
from trainer.loop.build import assemble
from trainer.loop.step import TrainStep
from trainer.process import prefer_growing_segments
from trainer.provenance import provenance
from trainyard.planner.plan import plan
from trainyard.spec.job import JobSpec, parse_job_spec
from trainyard.training.flops import training_flops_per_token
from trainyard.training.known_devices import peak_flops

"""A figure as `emit` prints it."""
WARMUP_STEPS = 3
BF16 = {"param_dtype": "bfloat16"}
DEBUG = {
    "model": {"dim": 256, "n_layers": 6, "n_heads": 16, "n_kv_heads": 16, "ffn_dim": 768}
    | {"vocab_size": 2048},
    "training": {"seq_len": 512, "micro_batch_size": 4},
}
COMPILED = {"compile": {"enabled": True}}
FLOAT8 = {"quantization": {"recipe": "float8_tensorwise"}}
MAX_KEPT = {"activation_checkpoint": {"mode": "memory_budget", "memory_budget": 0.8}}


def recompute(mode: str) -> dict[str, Any]:
    """Return the section that makes backward recompute."""
    return {"activation_checkpoint": {"mode": mode}}


def llama(size: str, sequences: int, **sections: Any) -> dict[str, Any]:
    """Return a Llama in bfloat16 at 4,096 tokens."""
    training = {"seq_len": 4096, "micro_batch_size": sequences, **BF16}
    return {"model": {"size": size}, "training": training, **sections}


def llama_8b(**sections: Any) -> dict[str, Any]:
    """Return Llama 8B on one GPU of 80 GB: weights, gradients and moments take 60 GiB."""
    document = llama("8B", 1, optimizer={"state_dtype": "bfloat16"}, **sections)
    return document | {"training": document["training"] | {"weight_dtype": "bfloat16"}}


@dataclass(frozen=True)
class Case:
    """A measured case, and its targets."""

    document: dict[str, Any]
    ranks: int = 1
    bare: bool = False
    tokens_per_second: float | None = None
    """Minimum tokens/s per device."""
    mfu: float | None = None
    """Minimum share of the device's peak."""
    details: dict[str, str] = field(default_factory=dict)


TORCHTITAN = {1: 2000.0, 2: 1680.0}
"""torchtitan's tokens/s per rank on the machine of the first measurement, by ranks."""
EMULATED = {"note": "float8 is emulated on a CPU: its rounding, not its speed"}
ON_CPU = {
    "bare": Case(DEBUG, bare=True),
    "eager": Case(DEBUG, tokens_per_second=TORCHTITAN[1]),
    "eager_fsdp_2": Case(DEBUG, ranks=2, tokens_per_second=TORCHTITAN[2]),
    "compiled": Case(DEBUG | COMPILED, tokens_per_second=TORCHTITAN[1]),
    "compiled_fsdp_2": Case(DEBUG | COMPILED, ranks=2, tokens_per_second=TORCHTITAN[2]),
    "float8": Case(DEBUG | FLOAT8, details=EMULATED),
    "recompute_selective": Case(DEBUG | recompute("selective")),
    "recompute_full": Case(DEBUG | recompute("full")),
    "recompute_memory_budget": Case(DEBUG | COMPILED | recompute("memory_budget")),
}
# Whole logits of the bare loop take 30 GiB at four sequences: 75 in total.
ON_CUDA = {
    "bare_1b": Case(llama("1B", 2), bare=True),
    "eager_1b": Case(llama("1B", 2)),
    "recompute_selective_1b": Case(llama("1B", 2, **recompute("selective"))),
    "recompute_full_1b": Case(llama("1B", 2, **recompute("full"))),
    "recompute_memory_budget_1b": Case(llama("1B", 2, **COMPILED, **recompute("memory_budget"))),
    "compiled_1b": Case(llama("1B", 4, **COMPILED), mfu=0.45),
    "compiled_3b": Case(llama("3B", 2, **COMPILED), mfu=0.45),
    "eager_3b": Case(llama("3B", 2, **recompute("full"))),
    "compiled_8b": Case(llama_8b(**COMPILED, **MAX_KEPT), mfu=0.45),
    "float8_8b": Case(llama_8b(**COMPILED, **MAX_KEPT, **FLOAT8)),
    "eager_8b": Case(llama_8b(**recompute("full"))),
}
FLOAT8_GAIN = 1.3
"""Minimum tokens/s of `float8_8b`, as a multiple of those of `compiled_8b`."""


def spec_of(case: Case) -> JobSpec:
    """Return the job of a case; its global batch is one micro-batch per rank."""
    training = case.document["training"]
    batch = training["micro_batch_size"] * case.ranks
    return parse_job_spec(
        case.document
        | {
            "training": training | {"global_batch_size": batch},
            "lr_schedule": {"warmup_steps": 0},
            "resources": {"world_size": case.ranks},
        }
    )


@dataclass(frozen=True)
class Measured:
    """Measurements of a case on one rank."""

    device: torch.device
    kind: str
    """Name of the device."""
    step_seconds: float
    """Median of the timed steps."""
    tokens_per_second: float
    """Tokens/s of one device."""
    flops_per_second: float
    mfu: float | None
    """Share of the device's bfloat16 peak, if that is known."""
    peak_bytes: int
    """Peak of memory: reserved on a GPU, resident on a CPU."""
    planned_bytes: int
    """The planner's estimate of it."""
    first_loss: float
    """Loss of the first step; all steps have the same sequences."""
    loss: float
    """Loss of the last step."""


def measure(name: str, case: Case, steps: int) -> bool:
    """Run a case on this rank, and print its figures on the first one."""
    measured, leads = run_case(case, steps)
    return not leads or _print(name, case, measured)


def run_case(case: Case, steps: int) -> tuple[Measured, bool]:
    """Run a case on this rank; return its measurements, and whether this is the first rank."""
    spec = spec_of(case)
    device = _join()
    if device.type == "cpu":
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    step = _bare_step(spec, device) if case.bare else _our_step(spec, device)
    with nullcontext() if case.bare else fast_products(device):
        warmed = [step() for _ in range(WARMUP_STEPS)]
        seconds = statistics.median([step_seconds(step, device) for _ in range(steps)])
        loss = step()
    leads = dist.get_rank() == 0
    dist.barrier()
    dist.destroy_process_group()
    tokens_per_second = spec.tokens_per_step / case.ranks / seconds
    flops = training_flops_per_token(spec.architecture, spec.training.seq_len) * tokens_per_second
    known = device.type == "cuda"
    kind = torch.cuda.get_device_name(device) if known else "CPU"
    # The bfloat16 peak also for float8, so that its gain shows.
    peak = peak_flops(kind, "bfloat16") if known else None
    measured = Measured(
        device=device,
        kind=kind,
        step_seconds=seconds,
        tokens_per_second=tokens_per_second,
        flops_per_second=flops,
        mfu=None if peak is None else flops / peak,
        peak_bytes=_peak_bytes(device),
        planned_bytes=plan(spec).memory.total,
        first_loss=warmed[0],
        loss=loss,
    )
    return measured, leads


def _join() -> torch.device:
    """Join the process group of the launch, or make one of this process alone."""
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    return device


def _bare_step(spec: JobSpec, device: torch.device) -> Callable[[], float]:
    training = spec.training
    model = BareLlama(spec.architecture, training.seq_len).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=spec.optimizer.lr, fused=True)
    tokens = _tokens(spec, 0).to(device)
    cast = training.param_dtype == "bfloat16"

    def step() -> float:
        with torch.autocast(device.type, torch.bfloat16, enabled=cast):
            loss: torch.Tensor = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), training.max_grad_norm or 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


def _our_step(spec: JobSpec, device: torch.device) -> Callable[[], float]:
    layout = spec.layout()
    assembly = assemble(spec, layout, device)
    train = TrainStep(assembly.forward_backward, assembly.optimizer, spec, stages=assembly.stages)
    rank = dist.get_rank()
    window = _tokens(spec, rank).numpy()
    positions = np.arange(len(window)) + rank * len(window)
    batch = MicroBatch(window[:, :-1], window[:, 1:], positions, weight=1)

    steps = itertools.count(1)

    def step() -> float:
        loss = train(next(steps), [batch]).loss
        dist.all_reduce(loss)
        return loss.item()

    return step


def _tokens(spec: JobSpec, rank: int) -> torch.Tensor:
    shape = (spec.training.micro_batch_size, spec.training.seq_len + 1)
    generator = torch.Generator().manual_seed(rank)
    return torch.randint(spec.architecture.vocab_size, shape, generator=generator)


def step_seconds(step: Callable[[], object], device: torch.device) -> float:
    """Run a step and return its wall time, until the device has finished it."""
    started = time.perf_counter()
    step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started


def _print(name: str, case: Case, measured: Measured) -> bool:
    figures: list[tuple[str, float, str, float | None]] = [
        (
            "tokens_per_second",
            measured.tokens_per_second,
            "tokens/s per device",
            case.tokens_per_second,
        )
    ]
    if measured.mfu is not None:
        figures.append(("mfu", measured.mfu, "share of the bfloat16 peak", case.mfu))
    known = measured.device.type == "cuda"
    memory, planned = measured.peak_bytes, measured.planned_bytes
    software = _software() if known else {}
    passed = True
    for figure, value, unit, target in figures:
        passed &= emit(
            f"trainer_{name}_{figure}",
            figure=value,
            unit=unit,
            target=target or 0.0,
            at_least=True,
            packages=("torch", "torchao"),
            device=measured.kind,
            ranks=case.ranks,
            step_seconds=round(measured.step_seconds, 4),
            flops_per_second=float(f"{measured.flops_per_second:.4g}"),
            peak_gib=round(memory / 2**30, 3),
            planned_gib=round(planned / 2**30, 3),
            loss=round(measured.loss, 4),
            **software,
            **case.details,
        )
    if known and name.startswith("eager"):
        passed &= emit(
            f"trainer_{name}_memory",
            figure=abs(planned / memory - 1),
            unit="planner's estimate off the peak that was reserved",
            target=0.10,
            at_least=False,
            packages=("torch",),
            device=measured.kind,
            peak_gib=round(memory / 2**30, 3),
            planned_gib=round(planned / 2**30, 3),
            **software,
        )
    return passed


def _software() -> dict[str, object]:
    """Return the versions below torch that matter on a GPU."""
    found = provenance()
    return {"cuda": found.cuda, "cuda_driver": found.cuda_driver, "nccl": found.nccl}


def _peak_bytes(device: torch.device) -> int:
    """Return the peak: reserved on a GPU; resident on a CPU, with torch's own 0.3 GiB in it."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    with open("/proc/self/status", encoding="ascii") as status:  # noqa: PTH123 (no file: the kernel)
        line = next(line for line in status if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def main() -> int:
    """Run each case in separate processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--here", action="store_true", help="run the one case in this process")
    arguments = parser.parse_args()
    cases = ON_CUDA if torch.cuda.is_available() else ON_CPU
    if unknown := set(arguments.cases) - set(cases):
        parser.error(f"no case {', '.join(sorted(unknown))}; there are {', '.join(cases)}")
    if arguments.here:
        name = arguments.cases[0]
        measure(name, cases[name], arguments.steps)
        return 0  # the printed lines show whether the targets were reached
    passed, lines = True, list[Line]()
    for name in arguments.cases or cases:
        reached, printed = _launch(name, cases[name], arguments.steps)
        passed &= reached
        lines += printed
    passed &= float8_gain(lines)
    return 0 if passed else 1


def _launch(name: str, case: Case, steps: int) -> tuple[bool, list[Line]]:
    """Run a case; return whether it reached its targets, and its printed lines."""
    words = ["-m", "benchmarks.trainer", name, "--here", f"--steps={steps}"]
    command = torchrun(case.ranks, *words) if case.ranks > 1 else [sys.executable, *words]
    environment = dict(os.environ)
    if not torch.cuda.is_available():  # on a GPU the threads only draw the weights
        environment.setdefault("OMP_NUM_THREADS", "1")
    prefer_growing_segments(environment)  # as the trainer does
    return run_and_relay(command, environment)


def float8_gain(lines: Iterable[Line]) -> bool:
    """Print how much faster float8 trains than bfloat16, if both are among the lines."""
    by_name = {line["benchmark"]: line for line in lines}
    float8, bfloat16 = (
        by_name.get(f"trainer_{name}_8b_tokens_per_second") for name in ("float8", "compiled")
    )
    if float8 is None or bfloat16 is None:
        return True
    return emit(
        "trainer_float8_8b_gain",
        figure=float8["figure"] / bfloat16["figure"],
        unit="tokens/s of those in bfloat16",
        target=FLOAT8_GAIN,
        at_least=True,
        packages=("torch", "torchao"),
        **{name: float8[name] for name in ("device", "cuda", "cuda_driver", "nccl")},
    )


if __name__ == "__main__":
    sys.exit(main())
