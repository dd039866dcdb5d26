"""Warnings about legal jobs that the nodes' hardware runs slowly, or not on every node."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from trainyard.base.problems import Problem
from trainyard.spec.job import JobSpec
from trainyard.spec.precision import can_quantize, number_format, slots_for
from trainyard.training.known_devices import Slot


def hardware_warnings(spec: JobSpec, slots: Collection[Slot]) -> Iterator[Problem]:
    """Yield each setting that runs slower than expected, or not on every eligible node."""
    own = slots_for(spec, slots)
    if slots and not own:
        yield Problem(
            pointer="/resources/device",
            detail=f"no node has a slot of device={spec.resources.device!r}: the job waits until "
            "one joins",
        )
    on_cpu = spec.resources.device == "cpu" or (
        bool(own) and all(slot.device == "cpu" for slot in own)
    )
    if number_format(spec) is not None and on_cpu:
        yield Problem(
            pointer="/quantization/recipe",
            detail=f"a CPU emulates {spec.quantization.recipe}: its rounding, not its speed",
        )
    if not on_cpu:
        yield from _lacking(spec, own)
        yield from _eager(spec)
    if spec.optimizer.cpu_offload and on_cpu:
        yield Problem(
            pointer="/optimizer/cpu_offload",
            detail="cpu_offload changes nothing on CPU slots: everything is in the host's memory",
        )


def _eager(spec: JobSpec) -> Iterator[Problem]:
    fmt = number_format(spec)
    if fmt is not None and spec.compile.enabled is not True:
        yield Problem(
            pointer="/compile/enabled",
            detail=f"compile.enabled=false with recipe={spec.quantization.recipe!r}: scales and "
            f"casts then run as kernels of their own and may cost more than {fmt} products win; "
            "compile.enabled=true fuses them",
        )


def _lacking(spec: JobSpec, slots: Collection[Slot]) -> Iterator[Problem]:
    lacking = sorted({slot.name for slot in slots if not can_quantize(spec, slot)})
    if lacking:
        yield Problem(
            pointer="/quantization/recipe",
            detail=f"the job would fail on nodes with {', '.join(lacking)}, which cannot multiply "
            f"{number_format(spec)}",
        )
