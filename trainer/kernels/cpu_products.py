"""Products of float32 matrices on a CPU by oneDNN, where MKL leaves AVX-512 unused.

MKL multiplies by AVX2 on processors of AMD: 105 GFLOP/s on a core that oneDNN brings to 250.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

CPU_INFO = Path("/proc/cpuinfo")
PROBED = 128
"""Rows and columns of the product that is checked; torch leaves products below 16 to MKL."""
UNIT_ROUNDOFF = 2.0**-24
"""Of float32; that of bfloat16 is 2^-9."""


@contextmanager
def fast_products(device: torch.device) -> Iterator[None]:
    """Multiply float32 matrices by oneDNN in this block, if it is the faster library here.

    Results differ from those of MKL in the order of sums alone. torch selects oneDNN for float32 by
    the setting that permits products in bfloat16, which oneDNN uses only on processors with AMX:
    these are left out, and a product is checked. A job that sets MKL_CBWR keeps MKL.
    """
    former = torch.get_float32_matmul_precision()
    if (
        device.type != "cpu"
        or former != "highest"
        or "MKL_CBWR" in os.environ
        or not mkl_lacks_avx512(CPU_INFO)
    ):
        yield
        return
    # Not by `torch.backends.mkldnn.matmul`: torch then refuses to return the precision in use,
    # which the compiler reads. No product of this process runs on a GPU.
    torch.set_float32_matmul_precision("medium")
    try:
        if not products_are_float32():
            torch.set_float32_matmul_precision(former)
        yield
    finally:
        torch.set_float32_matmul_precision(former)


def mkl_lacks_avx512(cpu_info: Path) -> bool:
    """Return whether this processor has AVX-512 that MKL does not use, and no AMX."""
    try:
        text = cpu_info.read_text()
    except OSError:
        return False
    lines = (line.partition(":") for line in text.splitlines())
    first = {name.strip(): value.strip() for name, _, value in reversed([*lines])}
    flags = first.get("flags", "").split()
    return (
        first.get("vendor_id") == "AuthenticAMD"
        and {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= {*flags}
        and not any(flag.startswith("amx") for flag in flags)
    )


def products_are_float32() -> bool:
    """Return whether a product of this process has float32's error (Higham, 2002, section 3.1)."""
    generator = torch.Generator(device="cpu").manual_seed(0)
    left, right = (torch.randn(PROBED, PROBED, generator=generator, device="cpu") for _ in range(2))
    exact = left.double() @ right.double()
    bound = PROBED * UNIT_ROUNDOFF * (left.abs() @ right.abs())
    return bool(((left @ right).double() - exact).abs().le(bound).all())
