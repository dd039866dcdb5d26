"""Checks of the loss curve: like a CPU's, repeatable with one seed, and without device waits."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from tools.gpu_check.check import Here
from tools.gpu_check.launch import Job
from tools.gpu_check.training import INPUTS, alone, compile_section, curve, job
from trainer.loop.build import compute_deterministically
from trainyard.prove.figures import Figure, at_most, equal, largest_difference, reported

BOUNDS = {"float32": 1e-4, "bfloat16": 1e-2}
"""Maximum relative difference between the losses of device and CPU over 30 steps, by dtype."""
TWICE = {"cpu": 0.0, "cuda": 1e-3}
"""Maximum relative difference between two runs with one seed; CUDA kernels add in varying order."""
LOG_EVERY = 4
SYNCHRONIZING = "synchronizing CUDA operation"
READS = {"item", "tolist", "cpu", "numpy", "__float__", "__int__", "__bool__", "__array__"}


def as_on_a_cpu(here: Here, dtype: str) -> list[Figure]:
    """Compare the trainer's losses on the device with losses in float32 on the CPU.

    If the device is a CPU, two ranks are tested, because one rank is already the reference.
    """
    reference = Job.small(here.scratch / "reference", "cpu").run()
    changed = {"training": {"param_dtype": dtype}}
    ranks = 2 if here.device == "cpu" else 1
    tested = Job.small(here.scratch / "tested", here.device, **changed).run(ranks=ranks)
    losses, expected = tested.values("train/loss"), reference.values("train/loss")
    norms, expected_norms = tested.values("train/grad_norm"), reference.values("train/grad_norm")
    off = largest_difference(losses.values(), expected.values())
    return [
        equal("same_sequences", tested.digests() == reference.digests(), expected=True),
        equal("steps", len(losses), 30),
        at_most("loss_off_the_cpu", off, BOUNDS[dtype]),
        at_most(
            "grad_norm_off_the_cpu",
            largest_difference(norms.values(), expected_norms.values()),
            10 * BOUNDS[dtype],
        ),
        reported("last_loss", losses[30]),
    ]


def one_seed_twice(here: Here) -> list[Figure]:
    """Train twice with one seed in bfloat16, with dropout; then train with another seed."""
    spec = job(here.device, training={"param_dtype": "bfloat16"}, model={"dropout": 0.1})
    other = job(
        here.device, training={"param_dtype": "bfloat16", "seed": 1}, model={"dropout": 0.1}
    )
    with alone(here.device) as device:
        first, second, another = curve(spec, device), curve(spec, device), curve(other, device)
    off = largest_difference(second.losses, first.losses)
    return [
        at_most("loss_off_the_first_run", off, TWICE[here.device]),
        reported("bit_equal", first == second),
        equal("another_seed_differs", another.losses != first.losses, expected=True),
    ]


def deterministic_twice(here: Here) -> list[Figure]:
    """Train twice with one seed and `training.deterministic`, on each kind of input."""
    compute_deterministically()
    figures = []
    with alone(here.device) as device:
        for name, inputs in INPUTS.items():
            spec = job(
                here.device, **inputs, training={"param_dtype": "bfloat16", "deterministic": True}
            )
            first, second = curve(spec, device), curve(spec, device)
            figures += [
                equal(f"{name}_bit_equal", first == second, expected=True),
                at_most(f"{name}_last_loss_of_first", first.losses[-1] / first.losses[0], 0.95),
            ]
    return figures


def nothing_waits_between_logged_steps(here: Here, *, compiled: bool) -> list[Figure]:
    """Train in this process, and count waits for the device in steps that log nothing.

    On CUDA, torch reports the waits. On a CPU nothing waits, so the check counts reads of numbers
    from float tensors, which would be on the device.
    """
    spec: dict[str, dict[str, Any]] = {
        "training": {"steps": 12, "log_every_steps": LOG_EVERY},
        "lr_schedule": {"warmup_steps": 1},
        "compile": compile_section(here.device) if compiled else {},
        "data": {"document_masks": True},
    }
    attempt = Job.small(here.scratch, here.device, **spec).prepare()
    waits = _Waits(here.device)
    with waits:
        attempt.train_here(waits.after_step)
    # The line of a step is written after the step's call and before the call of the next step.
    logged = {step + 1 for step in (1, 4, 8)}
    unlogged = [step for step in range(2, 13) if step not in logged]
    found = {step: waits.by_step[step] for step in unlogged if waits.by_step[step]}
    return [
        at_most("waits_in_unlogged_steps", sum(map(len, found.values())), 0),
        # A counter that never finds anything would prove nothing.
        equal("logged_steps_wait", all(waits.by_step[step] for step in logged), expected=True),
        reported("where", "; ".join(_frequent(found))),
    ]


def _frequent(found: dict[int, list[str]]) -> list[str]:
    counted = Counter(where for places in found.values() for where in places)
    return [f"{where} x{count}" for where, count in counted.most_common(5)]


class _Waits(TorchFunctionMode):
    """Records waits for the device, by the step after which they were found."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.by_step: dict[int, list[str]] = {}
        self._on_cuda = device == "cuda"
        self._found: list[str] = []
        self._catching = warnings.catch_warnings()

    def __enter__(self) -> Any:
        self._catching.__enter__()
        warnings.simplefilter("ignore")
        if self._on_cuda:
            warnings.filterwarnings("always", message=f".*{SYNCHRONIZING}.*")
            warnings.showwarning = self._warned  # type: ignore[assignment]
            torch.cuda.set_sync_debug_mode("warn")
            return self
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *raised: Any) -> None:
        self._catching.__exit__(*raised)
        if self._on_cuda:
            torch.cuda.set_sync_debug_mode("default")
        else:
            super().__exit__(*raised)  # type: ignore[no-untyped-call]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in READS and isinstance(args[0], torch.Tensor) and args[0].is_floating_point():
            self._found.append(name)
        return func(*args, **(kwargs or {}))

    def after_step(self, step: int) -> None:
        """Assign the waits since the previous step to this step."""
        self.by_step[step] = list(self._found)
        self._found.clear()

    def _warned(self, _message: Any, _kind: Any, filename: str, line: int, *_: Any) -> None:
        self._found.append(f"{Path(filename).name}:{line}")
