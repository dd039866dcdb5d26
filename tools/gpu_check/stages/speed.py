"""Checks of speed and memory with weights in bfloat16: eager, compiled, and in float8."""

from __future__ import annotations

from typing import Any

from benchmarks.trainer import (
    COMPILED,
    DEBUG,
    FLOAT8,
    FLOAT8_GAIN,
    MAX_KEPT,
    Case,
    llama,
    llama_8b,
    recompute,
    run_case,
)
from tools.gpu_check.check import Here
from tools.gpu_check.runner import current_lines
from tools.gpu_check.training import EAGER, compile_section
from trainyard.prove.figures import Figure, at_least, at_most, reported

BF16 = {"weight_dtype": "bfloat16", "param_dtype": "bfloat16"}
STATES = {"optimizer": {"state_dtype": "bfloat16"}}
STEPS = {"cpu": 3, "cuda": 12}
MFU = 0.45
"""Minimum share of the peak bfloat16 FLOP/s that a compiled step achieves."""
PLANNER = 0.10
"""Maximum relative error of the planner's prediction of the peak reserved memory."""
COMPILED_GAIN = 1.05
"""Minimum ratio of tokens/s in a compiled step to tokens/s in an eager step."""


def step(here: Here, size: str, way: str) -> list[Figure]:
    """Time the steps of one model in one way; the loss falls, as all steps use equal sequences."""
    case = on_cuda(size, way) if here.device == "cuda" else _on_cpu(size, way)
    measured, _ = run_case(case, STEPS[here.device])
    figures = [
        at_most("loss_of_first", measured.loss / measured.first_loss, 0.999),
        reported("tokens_per_second", measured.tokens_per_second),
        reported("step_seconds", measured.step_seconds),
        reported("tflops_per_second", measured.flops_per_second / 1e12),
        reported("peak_gib", measured.peak_bytes / 2**30),
        reported("planned_gib", measured.planned_bytes / 2**30),
    ]
    if measured.mfu is not None:
        bounded = way == "compiled" and size != "1B"
        figures.append(
            at_least("mfu", measured.mfu, MFU) if bounded else reported("mfu", measured.mfu)
        )
    if here.device == "cuda":
        off = abs(measured.planned_bytes / measured.peak_bytes - 1)
        figures.append(at_most("planner_off", off, PLANNER))
    return figures


def gains(here: Here, size: str) -> list[Figure]:
    """Compare the speeds of the three ways, which earlier checks wrote to their lines."""
    rates = {
        line["check"]: line["figures"]["tokens_per_second"]
        for line in current_lines(here.lines)
        if line["stage"].startswith("speed") and "tokens_per_second" in line["figures"]
    }
    ways = [f"{size}_{way}" for way in ("eager", "compiled", "float8")]
    missing = [way for way in ways if way not in rates]
    assert not missing, f"{', '.join(missing)} was not timed"
    eager, compiled, float8 = (rates[way] for way in ways)
    return [
        at_least("compiled_of_eager", compiled / eager, COMPILED_GAIN),
        # Smaller products gain less than their scaling costs.
        at_least("float8_of_compiled", float8 / compiled, FLOAT8_GAIN if size == "8B" else 1.0),
    ]


def on_cuda(size: str, way: str) -> Case:
    """Return the benchmark case of a size and a way on a GPU."""
    sections = _sections(way)
    if size == "8B":
        kept = recompute("full") if way == "eager" else MAX_KEPT
        return Case(llama_8b(**kept, **sections))
    sequences = {"1B": 4, "3B": 2}[size]
    document = llama(size, sequences, **STATES, **sections)
    return Case(document | {"training": document["training"] | BF16})


def _on_cpu(size: str, way: str) -> Case:
    """Return the same case on a CPU, with the size of torchtitan's debug model or smaller."""
    sections = _sections(way)
    if way == "compiled":
        sections = {"compile": compile_section("cpu")}
    if way == "float8":
        sections = {"quantization": FLOAT8["quantization"]}
    layers = {"1B": 1, "3B": 2, "8B": 3}[size]
    return Case(
        DEBUG
        | STATES
        | sections
        | {
            "model": DEBUG["model"] | {"n_layers": layers},
            "training": DEBUG["training"] | BF16 | {"seq_len": 128},
        }
    )


def _sections(way: str) -> dict[str, Any]:
    ways: dict[str, dict[str, Any]] = {
        "eager": {"compile": EAGER},
        "compiled": COMPILED,
        "float8": {**COMPILED, **FLOAT8},
    }
    return ways[way]
