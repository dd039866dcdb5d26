"""Known GPUs, by name: capabilities, speed and memory.

FLOP/s are the dense peaks in the manufacturers' data sheets (half of the values "with sparsity"),
for products that are summed in float32. Names are those in `nvidia-smi` and
`torch.cuda.get_device_name`. For a GPU that is not listed, no rule rejects a job, and no plan makes
a prediction before the first measured run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

T = 10**12
GB = 10**9
Precision = Literal["float32", "tf32", "bfloat16", "float8"]

LEAST_CAPABILITY = {"float8": (8, 9), "mxfp8": (10, 0)}
"""By number format, the minimum compute capability of GPUs whose tensor cores support this format
(PTX ISA, `mma` and `tcgen05`).
"""


@dataclass(frozen=True)
class Slot:
    """Hardware of a kind of slot, as registered by its node."""

    device: Literal["cpu", "cuda"]
    """Kind of device."""
    name: str
    """Name of the GPU or CPU."""
    memory_bytes: int
    """Memory of one slot."""


@dataclass(frozen=True)
class Device:
    """A kind of GPU."""

    name: str
    """Short name, such as `H100 SXM`."""
    capability: tuple[int, int]
    """CUDA compute capability."""
    memory_bytes: int
    """Memory from the data sheet, in bytes; the smallest memory if the GPU has several variants."""
    nvlink: bool
    """Whether GPUs of a node can access each other's memory, which symmetric memory requires."""
    peak_flops: dict[Precision, float]
    """Dense peak in FLOP/s, by precision; except float32, a precision without tensor cores is
    absent."""

    def can(self, number_format: Literal["float8", "mxfp8"]) -> bool:
        """Return whether the GPU's tensor cores support a number format."""
        return self.capability >= LEAST_CAPABILITY[number_format]


def known_device(name: str) -> Device | None:
    """Return the GPU with this name; None for an unknown GPU and for a MIG instance."""
    if re.search(r"\bMIG\b", name):
        return None
    return next((device for pattern, device in DEVICES if re.search(pattern, name)), None)


def peak_flops(name: str, precision: Precision) -> float | None:
    """Return the dense peak of a GPU in FLOP/s; None if unknown."""
    device = known_device(name)
    return None if device is None else device.peak_flops.get(precision)


def _device(
    name: str,
    capability: tuple[int, int],
    gigabytes: int,
    *teraflops: float,
    nvlink: bool = False,
) -> Device:
    peaks = zip(get_args(Precision), (peak * T for peak in teraflops), strict=False)
    return Device(name, capability, gigabytes * GB, nvlink, dict(peaks))


_HOPPER_SXM = (66.9, 494.7, 989.4, 1978.9)
_HOPPER_NVL = (60.0, 417.5, 835.5, 1671.0)
_A100 = (19.5, 156.0, 312.0)

# The first match is used, so variants of a GPU come before its plain name.
# Data sheets: NVIDIA HGX B200 and GB200 NVL72 (per GPU), H100, H200, GH200, A100, A40, A30, A10,
# L40S, L40, L20, L4, RTX 6000 Ada, V100, T4, H20, H800, A800 (these two have slower links only);
# whitepapers of GB202 (RTX 5090), AD102 (RTX 4090) and GA102 (RTX 3090).
# Columns: compute capability, GB, TFLOP/s of float32 (no tensor cores), tf32, bfloat16, float8.
DEVICES: tuple[tuple[str, Device], ...] = (
    (r"\bGB200\b", _device("GB200", (10, 0), 186, 80, 1250, 2500, 5000, nvlink=True)),
    (r"\bB200\b", _device("B200", (10, 0), 180, 75, 1125, 2250, 4500, nvlink=True)),
    (r"\bGH200\b", _device("GH200", (9, 0), 96, *_HOPPER_SXM, nvlink=True)),
    (r"\bH200 NVL\b", _device("H200 NVL", (9, 0), 141, *_HOPPER_NVL, nvlink=True)),
    (r"\bH200\b", _device("H200 SXM", (9, 0), 141, *_HOPPER_SXM, nvlink=True)),
    (r"\bH20\b", _device("H20", (9, 0), 96, 44, 74, 148, 296, nvlink=True)),
    (r"\bH800 PCIe\b", _device("H800 PCIe", (9, 0), 80, 51.2, 378, 756, 1513)),
    (r"\bH800\b", _device("H800 SXM", (9, 0), 80, *_HOPPER_SXM, nvlink=True)),
    (r"\bH100 NVL\b", _device("H100 NVL", (9, 0), 94, *_HOPPER_NVL, nvlink=True)),
    (r"\bH100 PCIe\b", _device("H100 PCIe", (9, 0), 80, 51.2, 378, 756, 1513)),
    (r"\bH100\b", _device("H100 SXM", (9, 0), 80, *_HOPPER_SXM, nvlink=True)),
    (r"\bA100-PCIE|\bA100 80GB PCIe", _device("A100 PCIe", (8, 0), 40, *_A100)),
    (r"\bA100\b", _device("A100 SXM", (8, 0), 40, *_A100, nvlink=True)),
    (r"\bA800-PCIE|\bA800 80GB PCIe|\bA800 40GB", _device("A800 PCIe", (8, 0), 40, *_A100)),
    (r"\bA800\b", _device("A800 SXM", (8, 0), 80, *_A100, nvlink=True)),
    (r"\bRTX 6000 Ada\b", _device("RTX 6000 Ada", (8, 9), 48, 91.1, 182.1, 364.2, 728.5)),
    (r"\bL40S\b", _device("L40S", (8, 9), 48, 91.6, 183, 362, 733)),
    (r"\bL40\b", _device("L40", (8, 9), 48, 90.5, 90.5, 181, 362)),
    (r"\bL20\b", _device("L20", (8, 9), 48, 59.8, 59.8, 119.5, 239)),
    (r"\bL4\b", _device("L4", (8, 9), 24, 30.3, 60, 121, 242)),
    (r"\bA40\b", _device("A40", (8, 6), 48, 37.4, 74.8, 149.7)),
    (r"\bA30\b", _device("A30", (8, 0), 24, 10.3, 82, 165)),
    (r"\bA10\b", _device("A10", (8, 6), 24, 31.2, 62.5, 125)),
    (r"\bV100-SXM", _device("V100 SXM", (7, 0), 16, 15.7, nvlink=True)),
    (r"\bV100-PCIE", _device("V100 PCIe", (7, 0), 16, 14.0)),
    (r"\bT4\b", _device("T4", (7, 5), 16, 8.1)),
    (r"\bRTX 5090$", _device("RTX 5090", (12, 0), 32, 104.8, 104.8, 209.5, 419)),
    (r"\bRTX 4090$", _device("RTX 4090", (8, 9), 24, 82.6, 82.6, 165.2, 330.3)),
    (r"\bRTX 3090$", _device("RTX 3090", (8, 6), 24, 35.6, 35.6, 71)),
)
