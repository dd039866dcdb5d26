"""The gradient that one seed gives on this rank, as a digest of its bits and as numbers."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import numpy as np
import torch

from trainer.models.base import Model
from trainer.rank_probe.probe_place import Measured, ProbePlace
from trainer.rank_probe.probed_model import SCALES, SEED, backward, build, tokens
from trainyard.protocol.rank_probe.probe_values import ProbeValue

REPETITIONS = 5
CPU_INFO = Path("/proc/cpuinfo")


def measure_gradient(place: ProbePlace) -> Measured:
    """Yield the kind of the device, and the digest and numbers of its gradient.

    The process computes with deterministic algorithms (`compute_deterministically`), so equal
    devices give equal bits. Each repetition copies the gradient to the host, one parameter at a
    time.
    """
    device = place.ranks.device
    yield ProbeValue.KIND, crc32(kind_of(device).encode())
    scale = SCALES[device.type]
    model, given = build(scale, device), tokens(scale, device)
    digests = []
    for _ in range(REPETITIONS):
        backward(model, *given)
        digests.append(_digest(model))
    # The most frequent digest: a single wrong repetition is counted, not shown as the gradient.
    yield ProbeValue.GRADIENT_DIGEST, max(digests, key=digests.count)
    norm, projection = _numbers(model)
    yield ProbeValue.GRADIENT_NORM, norm
    yield ProbeValue.GRADIENT_PROJECTION, projection
    yield ProbeValue.GRADIENT_DIGESTS, len(set(digests))


def kind_of(device: torch.device) -> str:
    """Return what determines the bits of a gradient: device, its instructions, torch, threads."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    words = (
        _processor(),
        torch.backends.cpu.get_cpu_capability(),
        f"{torch.get_num_threads()} threads",  # each number of threads divides sums in another way
        f"torch {torch.__version__}",
    )
    return ", ".join(words)


def _processor() -> str:
    """Return the name of the processor, or of its architecture where the system lists no name."""
    try:
        lines = CPU_INFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _gradients(model: Model) -> Iterator[torch.Tensor]:
    for parameter in model.parameters():
        assert parameter.grad is not None, "each parameter of the probed model is used"
        yield parameter.grad.detach()


def _digest(model: Model) -> int:
    digest = 0
    for gradient in _gradients(model):
        # Integers of the same width, because numpy has no bfloat16.
        bits = gradient.view(torch.int16 if gradient.itemsize == 2 else torch.int32)
        digest = crc32(bits.cpu().numpy().tobytes(), digest)
    return digest


def _numbers(model: Model) -> tuple[float, float]:
    """Return the norm of the gradient, and its projection as a fraction of the norm."""
    square = projection = 0.0
    signs = np.random.Generator(np.random.PCG64(SEED))
    for gradient in _gradients(model):
        values = gradient.flatten().cpu().double().numpy()
        square += float(np.square(values).sum())
        projection += float(np.where(signs.random(values.size) < 0.5, -values, values).sum())
    norm = float(np.sqrt(square))
    return norm, projection / norm
