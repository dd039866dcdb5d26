"""Measurements of a rank at a logged step: memory, compilation, hardware utilization."""

from __future__ import annotations

import logging
import resource
import sys

import torch
import torch.distributed as dist

from trainyard.spec.job import JobSpec
from trainyard.training.flops import training_flops_per_token
from trainyard.training.known_devices import Precision, peak_flops

logger = logging.getLogger("trainer")

GIB = 2**30


def memory(device: torch.device) -> dict[str, float]:
    """Return this rank's peak memory in GiB; on a GPU, also the counts of failed allocations."""
    if device.type == "cuda":
        stats = torch.cuda.memory_stats(device)
        return {
            "memory/peak_active_gib": stats["active_bytes.all.peak"] / GIB,
            "memory/peak_reserved_gib": stats["reserved_bytes.all.peak"] / GIB,
            "memory/allocation_retries": float(stats["num_alloc_retries"]),
            "memory/ooms": float(stats["num_ooms"]),
        }
    kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"memory/peak_rss_gib": kibibytes / 2**20}


def compile_seconds() -> float:
    """Return the time that torch.compile has taken in this process so far, in seconds."""
    # Not imported here, because the import takes two seconds; without the module, nothing was
    # compiled.
    utils = sys.modules.get("torch._dynamo.utils")
    return 0.0 if utils is None else utils.calculate_time_spent()["total_wall_time"]


def largest_of_ranks(values: dict[str, float], group: dist.ProcessGroup) -> dict[str, float]:
    """Return each value's maximum over the ranks; all ranks must call this with the same names."""
    most = torch.tensor(list(values.values()), dtype=torch.float64)
    dist.all_reduce(most, dist.ReduceOp.MAX, group=group)
    return dict(zip(values, most.tolist(), strict=True))


class HardwareUse:
    """Model FLOP/s, and MFU, the ratio of model FLOP/s to the device's peak.

    The constructor logs the reason if a value is unavailable.
    """

    def __init__(self, spec: JobSpec, device_name: str) -> None:
        self._flops_per_token: int | None = None
        self._peak: float | None = None
        if spec.model.is_own and spec.model.counted is None:
            logger.info("no model FLOPs: the FLOPs of an own model are unknown")
            return
        self._flops_per_token = training_flops_per_token(spec.architecture, spec.training.seq_len)
        precision = precision_of(spec)
        self._peak = peak_flops(device_name, precision)
        if self._peak is None:
            logger.info("no perf/mfu: the %s peak of %r is not known", precision, device_name)

    def values(self, tokens_per_second: float) -> dict[str, float]:
        """Return model TFLOP/s and MFU, where known, for a throughput per device in tokens/s."""
        if self._flops_per_token is None:
            return {}
        flops = self._flops_per_token * tokens_per_second
        values = {"perf/model_tflops_per_device": flops / 1e12}
        return values if self._peak is None else values | {"perf/mfu": flops / self._peak}


def precision_of(spec: JobSpec) -> Precision:
    """Return the precision that the majority of a job's matrix products use."""
    if spec.quantization.recipe != "none":
        return "float8"
    if spec.training.param_dtype == "bfloat16":
        return "bfloat16"
    # On a CPU, `trainer.kernels.cpu_products` uses the setting for another purpose.
    tf32 = torch.cuda.is_available() and torch.backends.cuda.matmul.allow_tf32
    return "tf32" if tf32 else "float32"


def device_name(device: torch.device) -> str:
    """Return a device name for `trainyard.training.known_devices`."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
