"""The cost of `parallelism.reshard_after_forward`: memory against sent bytes.

The counts are for Llama 8B on eight fake ranks (`benchmarks.one_rank`: equal on every machine),
with one micro-batch in a step, with two, and with a pipeline. The times are from two real ranks
over gloo; the settings alternate, so that other load affects them alike.

    python -m benchmarks.reshard [--layers 32] [--rounds 15]
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.launch import torchrun
from benchmarks.one_rank import Collectives, StepCost, costs_of_a_step, micro_batches
from benchmarks.report import emit, run_and_relay
from trainer.loop.build import assemble
from trainer.loop.step import TrainStep
from trainyard.planner.parameters import count_parameters
from trainyard.spec.job import JobSpec, parse_job_spec

SETTINGS = ("always", "default", "never")
RANKS = 8
PIPELINE_LAYERS = 8
PIPELINE_MICRO_BATCHES = 4
GATHERED, REDUCED = 2, 4
"""Bytes of a weight sent in bfloat16, and of a gradient summed in float32."""
EXACT = 1e-3
"""Tolerance of bytes: shards are padded to equal sizes, and vectors of norms divide unevenly."""
TIMED = {
    "model": {"dim": 256, "n_layers": 6, "n_heads": 16, "n_kv_heads": 16, "ffn_dim": 768}
    | {"vocab_size": 2048},
    "training": {"seq_len": 64, "micro_batch_size": 1, "global_batch_size": 4},
}
"""Few tokens for its weights, so that the communication is visible."""


@dataclass(frozen=True)
class Case:
    """A job without the setting."""

    document: dict[str, Any]

    def spec(self, setting: str) -> JobSpec:
        """Return the job with one of the settings."""
        axes = self.document.get("parallelism", {})
        return parse_job_spec(
            self.document
            | {
                "parallelism": axes | {"reshard_after_forward": setting},
                "lr_schedule": {"warmup_steps": 0},
            }
        )


def llama(layers: int, sequences: int, **axes: int) -> dict[str, Any]:
    """Return a Llama 8B with `layers` blocks, at 2,048 tokens, blocks recomputed in backward."""
    return {
        "model": {"size": "8B", "n_layers": layers},
        "training": {"seq_len": 2048, "micro_batch_size": 1, "global_batch_size": sequences}
        | {"param_dtype": "bfloat16"},
        "activation_checkpoint": {"mode": "full"},
        "parallelism": axes,
        "resources": {"world_size": RANKS, "device": "cpu"},
    }


def cases(layers: int) -> dict[str, Case]:
    """Return the counted cases by name; the pipeline has fewer blocks, as it takes longest."""
    pipeline = llama(min(layers, PIPELINE_LAYERS), PIPELINE_MICRO_BATCHES * RANKS // 2, pp=2)
    return {
        "fsdp": Case(llama(layers, RANKS)),
        "fsdp_two_micro_batches": Case(llama(layers, 2 * RANKS)),
        "pipeline": Case(pipeline),
    }


def count(name: str, case: Case) -> bool:
    """Print what each setting sends and holds on rank 0, and whether that is expected."""
    found = costs_of_a_step([(case.spec(setting), 0) for setting in SETTINGS])
    costs = dict(zip(SETTINGS, found, strict=True))
    passed = True
    for setting, cost in costs.items():
        passed &= _emit_bytes(name, case.spec(setting), cost)
    return passed & _emit_memory(name, case, costs)


def _emit_bytes(name: str, spec: JobSpec, cost: StepCost) -> bool:
    """Print the gathered bytes, as a multiple of gathering each weight of the rank once.

    Its number of weights equals that of its gradients.
    """
    setting = spec.parallelism.reshard_after_forward
    once = cost.sent["reduce_scatter"] * GATHERED / REDUCED / _reductions(spec)
    expected = _gatherings(spec) * once
    if setting == "always":
        # Backward needs no weights of the embedding: only each forward gathers them.
        expected -= (_gatherings(spec) - _rounds(spec)) * _embedding_bytes(spec)
    off = cost.sent["all_gather"] / expected - 1
    return emit(
        f"reshard_{name}_{setting}",
        # Between the other two: how far below `always` depends on the shape.
        figure=max(off, 0.0) if setting == "default" else abs(off),
        unit="all-gathered bytes off what the setting implies",
        target=EXACT,
        at_least=False,
        packages=("torch",),
        gatherings_of_each_weight=round(cost.sent["all_gather"] / once, 3),
        sent_gib={kind: _gib(count) for kind, count in cost.sent.items()},
        peak_gib=_gib(cost.peak),
        layout=str(spec.layout()),
        layers=spec.architecture.n_layers,
        micro_batches=_rounds(spec),
    )


def _gatherings(spec: JobSpec) -> int:
    """Return how often a rank gathers each weight in a step; for `default`, an upper limit.

    Backward gathers freed weights again. In a pipeline the next forward reuses weights that
    backward leaves whole. So with `always` only the first forward passes gather, and all backward
    passes except consecutive ones: m + p - 1 times for m micro-batches and p stages.
    """
    freed = spec.parallelism.reshard_after_forward == "always"
    layout, rounds = spec.layout(), _rounds(spec)
    if layout.pp > 1:
        return rounds + layout.pp - 1 if freed else 1
    return rounds if spec.parallelism.reshard_after_forward == "never" else 2 * rounds


def _embedding_bytes(spec: JobSpec) -> float:
    """Return the bytes that a rank sends when the embedding is gathered."""
    embedding = count_parameters(spec.architecture).embedding * GATHERED
    shards = spec.layout().dp_shard
    return embedding * (shards - 1) / shards


def _reductions(spec: JobSpec) -> int:
    """Return how often a rank sums each gradient over the others in a step."""
    whole = spec.parallelism.reshard_after_forward == "never" or spec.layout().pp > 1
    return 1 if whole else _rounds(spec)


def _rounds(spec: JobSpec) -> int:
    return spec.training.global_batch_size // spec.layout().dp


def _emit_memory(name: str, case: Case, costs: dict[str, StepCost]) -> bool:
    """Print how much more memory `never` takes at its peak than `always` at its own."""
    expected = _kept_whole(case.spec("never"))
    measured = costs["never"].peak - costs["always"].peak
    return emit(
        f"reshard_{name}_memory",
        figure=abs(measured - expected) / costs["always"].peak,
        unit="share of the peak by which never above always is off what is kept whole",
        target=0.01,
        at_least=False,
        packages=("torch",),
        never_above_always_gib=_gib(measured),
        kept_whole_gib=_gib(expected),
    )


def _kept_whole(spec: JobSpec) -> int:
    """Return the bytes that only `never` holds at its peak.

    These are all gathered blocks and the embedding; head and norm are gathered then anyway. From
    the second micro-batch on, the sum of the gradients is added, whole instead of in shards. A
    pipeline keeps all of it whole from the first backward on, in any setting.
    """
    if spec.layout().pp > 1:
        return 0
    parameters = count_parameters(spec.architecture)
    weights = (parameters.total - parameters.head - parameters.final_norm) * GATHERED
    several = _rounds(spec) > 1
    return weights + several * parameters.total * REDUCED * (RANKS - 1) // RANKS


def _gib(count: int) -> float:
    return round(count / 2**30, 3)


def time_here(rounds: int) -> bool:
    """Time steps of all settings alternately on this launch's ranks, and count what they send."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    world_size, device = dist.get_world_size(), torch.device("cpu")
    timed = Case(TIMED | {"resources": {"world_size": world_size, "device": "cpu"}})
    steps: dict[str, TrainStep] = {}
    sent: dict[str, dict[str, int]] = {}
    seconds: dict[str, list[float]] = {setting: [] for setting in SETTINGS}
    for setting in SETTINGS:
        spec = timed.spec(setting)
        layout = spec.layout()
        parts = assemble(spec, layout, device)
        steps[setting] = TrainStep(parts.forward_backward, parts.optimizer, spec)
        batches = micro_batches(spec, layout)
        steps[setting](1, batches)
        with Collectives() as collectives:
            steps[setting](2, batches)
        sent[setting] = dict(sorted(collectives.sent.items()))
    for number in range(rounds):
        for setting in SETTINGS:
            dist.barrier()
            started = time.perf_counter()
            steps[setting](number + 3, batches)
            seconds[setting].append(time.perf_counter() - started)
    leads = dist.get_rank() == 0
    dist.barrier()
    dist.destroy_process_group()
    return not leads or _emit_times(timed, seconds, sent)


def _emit_times(
    case: Case, seconds: dict[str, list[float]], sent: dict[str, dict[str, int]]
) -> bool:
    """Print the times, and whether real ranks send the counted bytes."""
    passed = True
    expected = costs_of_a_step([(case.spec(setting), 0) for setting in SETTINGS])
    for setting, cost in zip(SETTINGS, expected, strict=True):
        ratios = [s / a for s, a in zip(seconds[setting], seconds["always"], strict=True)]
        off = sum(sent[setting].values()) / sum(cost.sent.values())
        passed &= emit(
            f"reshard_real_{setting}",
            figure=abs(off - 1) if sent[setting].keys() == cost.sent.keys() else math.inf,
            unit="bytes that two real ranks send, off those counted without them",
            target=0.0,
            at_least=False,
            packages=("torch",),
            step_seconds=round(statistics.median(seconds[setting]), 4),
            of_the_time_of_always=round(statistics.median(ratios), 3),
            sent_mib={kind: round(count / 2**20, 2) for kind, count in sent[setting].items()},
            rounds=len(ratios),
            micro_batches=_rounds(case.spec(setting)),
        )
    return passed


def main() -> int:
    """Count, then time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=32, help="blocks of the Llama 8B")
    parser.add_argument("--rounds", type=int, default=15, help="timed steps of each setting")
    parser.add_argument("--here", action="store_true", help="time on the ranks of this launch")
    arguments = parser.parse_args()
    if arguments.here:
        time_here(arguments.rounds)
        return 0  # the printed lines show whether the targets were reached
    command = torchrun(2, "-m", "benchmarks.reshard", "--here", f"--rounds={arguments.rounds}")
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    reached, _ = run_and_relay(command, environment)
    missed = [name for name, case in cases(arguments.layers).items() if not count(name, case)]
    return 0 if reached and not missed else 1


if __name__ == "__main__":
    sys.exit(main())
