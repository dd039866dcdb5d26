"""Time per unit of work on a kind of hardware, from its data sheet or fitted to runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from trainyard.base.model_base import RecordModel
from trainyard.planner.speed.quantities import Quantity, StepWork
from trainyard.training.known_devices import known_device, peak_flops

MIB = 2**20
Amount = Annotated[float, Field(ge=0)]
RelativeError = Annotated[float, Field(ge=0, json_schema_extra={"unit": "share"})]

ON_CPU: Mapping[Quantity, float] = {
    "float32_flops": 1 / 50e9,  # one core with AVX-512
    "bfloat16_flops": 1 / 25e9,
    "attention_flops": 1 / 20e9,
    "moved_bytes": 1 / 5e9,
    "updated_bytes": 1 / 5e9,
    "node_bytes": 1 / 1e9,  # gloo over loopback
    "network_bytes": 1 / 1e9,
    "messages": 200e-6,
    "block_passes": 300e-6,
    "rounds": 1e-3,
    "steps": 3e-3,
}
"""Approximate seconds per unit on one core of a server; only the order of magnitude is right."""
ON_GPU: Mapping[Quantity, float] = {
    "moved_bytes": 1 / 1.5e12,
    "updated_bytes": 1 / 1.5e12,
    "network_bytes": 1 / 40e9,  # one 400 Gbit/s adapter per GPU
    "messages": 20e-6,
    "block_passes": 250e-6,  # about 30 kernel launches
    "rounds": 1e-3,
    "steps": 5e-3,
}
"""Seconds per unit on a GPU and its host, for quantities that no data sheet gives."""
PRODUCTS_REACH, ATTENTION_REACHES = 0.65, 0.4
"""Shares of the peak FLOP/s that large matrix products and fused attention achieve."""
NVLINK, PCIE = 200e9, 12e9
"""Bytes/s that one GPU sends in a collective to the other GPUs of its node."""
PROCESS_BYTES = {"cpu": 350 * MIB, "cuda": 64 * MIB}
"""Memory of a rank in addition to its tensors: torch itself on a CPU, the allocator's pools on a
GPU."""


class MemoryRates(RecordModel):
    """Actual bytes of a rank per estimated byte, by part of the estimate."""

    fixed: Amount
    """Constant number of bytes in addition to the parts of the estimate."""
    lasting: Amount
    """Factor for weights, gradients and optimizer states."""
    gathered: Amount
    """Factor for gathered weights and gradients of the active layers."""
    activations: Amount
    """Factor for activations."""
    logits: Amount
    """Factor for logits, their log-softmax and their gradients."""


class Accuracy(RecordModel):
    """Errors of the predictions for runs on a kind of hardware. Each prediction uses a fit to other
    runs."""

    step_median: RelativeError | None
    """Median relative error of the step time; absent without a measured step time."""
    step_p95: RelativeError | None
    """95 % quantile of the relative error of the step time."""
    memory_median: RelativeError | None
    """Median relative error of the memory peak."""
    memory_p95: RelativeError | None
    """95 % quantile of the relative error of the memory peak."""
    fits_judged: Annotated[int, Field(ge=0)]
    """Number of runs that were predicted to fit into memory."""
    fits_wrong: Annotated[int, Field(ge=0)]
    """Number of runs that were predicted to fit, but ran out of memory or needed more memory than a
    slot has."""


class Calibration(RecordModel):
    """Coefficients for a kind of hardware, with their accuracy."""

    device_name: str
    """Name of the GPU or CPU."""
    runs: Annotated[int, Field(ge=0)]
    """Number of runs in the fit; 0 for coefficients from the data sheet."""
    seconds: dict[Quantity, Amount]
    """Seconds per unit of each quantity."""
    memory: MemoryRates
    """Actual bytes per estimated byte, by part of the estimate."""
    memory_margin: Annotated[float, Field(ge=1)] = 1.0
    """Factor by which `fits` multiplies the predicted memory peak: 1 with few runs, else so large
    that no known run exceeds the product with its prediction from other runs."""
    accuracy: Accuracy | None = None
    """Errors of the predictions for the runs; absent without runs."""


def sheet_rates(device: Literal["cpu", "cuda"], device_name: str) -> Calibration | None:
    """Return the coefficients from the data sheet; None for an unknown GPU.

    Args:
        device: `cpu` or `cuda`.
        device_name: name of the GPU or CPU.
    """
    memory = MemoryRates(
        fixed=PROCESS_BYTES[device], lasting=1.0, gathered=1.15, activations=1.15, logits=1.15
    )
    if device == "cpu":
        return Calibration(device_name=device_name, runs=0, seconds=dict(ON_CPU), memory=memory)
    known = known_device(device_name)
    peak, plain = peak_flops(device_name, "bfloat16"), peak_flops(device_name, "float32")
    if known is None or plain is None:
        return None
    fast = peak or plain
    seconds: dict[Quantity, float] = {
        **ON_GPU,
        "float32_flops": 1 / (PRODUCTS_REACH * plain),
        "bfloat16_flops": 1 / (PRODUCTS_REACH * fast),
        "attention_flops": 1 / (ATTENTION_REACHES * fast),
        "node_bytes": 1 / (NVLINK if known.nvlink else PCIE),
    }
    return Calibration(device_name=device_name, runs=0, seconds=seconds, memory=memory)


def prior_rates(device: Literal["cpu", "cuda"], device_name: str) -> Calibration:
    """Return the initial coefficients of a fit; for an unknown GPU, those of an H100.

    The first run then scales all of them.
    """
    known = sheet_rates(device, device_name)
    if known is None:
        like = sheet_rates(device, "H100")
        assert like is not None, "it is a known device"
        known = like.model_copy(update={"device_name": device_name})
    return known


def seconds_by_quantity(work: StepWork, seconds: Mapping[Quantity, float]) -> dict[Quantity, float]:
    """Return the seconds of a step by quantity; their sum is the step time.

    A CPU does all work in sequence. A GPU computes while the host launches kernels and while
    overlapping traffic is sent, so only the longest of these three counts.
    """
    spent = {name: amount * seconds[name] for name, amount in work.quantities.items() if amount}
    if work.device == "cpu":
        return spent
    lanes: list[dict[Quantity, float]] = [
        {name: spent.pop(name) for name in lane if name in spent}
        for lane in (_DEVICE_LANE, _HOST_LANE)
    ]
    lanes.append({name: amount * seconds[name] for name, amount in work.hidden.items()})
    longest = max(lanes, key=lambda lane: sum(lane.values()))
    return {name: spent.get(name, 0.0) + longest.get(name, 0.0) for name in spent | longest}


_DEVICE_LANE: tuple[Quantity, ...] = (
    "float32_flops",
    "bfloat16_flops",
    "attention_flops",
    "moved_bytes",
)
_HOST_LANE: tuple[Quantity, ...] = ("block_passes", "rounds")
