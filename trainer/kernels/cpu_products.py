"""Products of float32 matrices on a CPU: uses oneDNN if MKL does not use AVX-512.

On AMD processors, MKL uses AVX2. On a Zen 5 core, MKL reaches 105 GFLOP/s and oneDNN 250. On a Zen
4 core, MKL reaches 97 GFLOP/s and oneDNN 108. Attention to short sequences uses MKL, because its
products are so small that a call of oneDNN costs more than it saves.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

CPU_INFO = Path("/proc/cpuinfo")
ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
ONEDNN_FROM = 2**15
"""Minimum size for which attention uses oneDNN: number of tokens times features per head. At half
of this size, oneDNN takes 1.3 to 2.2 times as long as MKL on Zen 4.
"""
ONEDNN, MKL = "medium", "highest"
"""Values of torch's float32 precision setting: the first selects oneDNN, the second MKL."""
PROBED = 128
"""Rows and columns of the test product; for up to 16^3 multiplications torch always uses MKL."""
UNIT_ROUNDOFF = 2.0**-24
"""Unit roundoff of float32; the unit roundoff of bfloat16 is 2^-8."""


@contextmanager
def fast_products(device: torch.device) -> Iterator[None]:
    """Multiply float32 matrices with oneDNN in this block if it is faster on this CPU.

    The results differ from MKL's only in the order of sums. torch's setting for oneDNN also permits
    products in bfloat16. oneDNN uses bfloat16 only on processors with AMX, so these processors are
    excluded, and a test product is verified. A job that sets MKL_CBWR keeps MKL.
    """
    former = torch.get_float32_matmul_precision()
    if (
        device.type != "cpu"
        or former != MKL
        or "MKL_CBWR" in os.environ
        or not mkl_lacks_avx512(CPU_INFO)
    ):
        yield
        return
    # Not set by `torch.backends.mkldnn.matmul`: afterwards torch would refuse to return the current
    # precision, which the compiler reads. No product of this process runs on a GPU.
    torch.set_float32_matmul_precision(ONEDNN)
    try:
        if not products_are_float32():
            torch.set_float32_matmul_precision(former)
            yield
            return
        with short_attention_by_mkl():
            yield
    finally:
        torch.set_float32_matmul_precision(former)


@contextmanager
def short_attention_by_mkl() -> Iterator[None]:
    """In this block, let torch's attention use MKL for short sequences and oneDNN for long ones."""
    library = torch.library.Library("aten", "IMPL", "CPU")
    try:
        for name in (ATTENTION, f"{ATTENTION}_backward"):
            kernel = torch.library.get_kernel(f"aten::{name}", "CPU")
            with warnings.catch_warnings():  # torch warns once per process about a replaced kernel
                warnings.simplefilter("ignore")
                attend = partial(_attend, kernel)
                library.impl(name, attend, with_keyset=True, allow_override=True)
        yield
    finally:
        library._destroy()


def _attend(kernel: Any, keys: Any, first_BHSW: Tensor, *others: Any, **options: Any) -> Any:
    """Run an attention kernel, forward or backward; its first input has the queries' shape."""
    selected = torch.get_float32_matmul_precision()
    is_long = first_BHSW.shape[-2] * first_BHSW.shape[-1] >= ONEDNN_FROM
    # Another thread may have selected MKL here, and restores oneDNN at its end. If this thread then
    # restored MKL, all later products would use MKL.
    if is_long or selected == MKL:
        return kernel.call_boxed(keys, first_BHSW, *others, **options)
    torch.set_float32_matmul_precision(MKL)
    try:
        return kernel.call_boxed(keys, first_BHSW, *others, **options)
    finally:
        torch.set_float32_matmul_precision(selected)


def mkl_lacks_avx512(cpu_info: Path) -> bool:
    """Return whether this processor is from AMD and has AVX-512, which MKL ignores, but no AMX."""
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
    """Return whether a test product is as exact as in float32 (Higham, 2002, section 3.1)."""
    generator = torch.Generator(device="cpu").manual_seed(0)
    left, right = (torch.randn(PROBED, PROBED, generator=generator, device="cpu") for _ in range(2))
    exact = left.double() @ right.double()
    bound = PROBED * UNIT_ROUNDOFF * (left.abs() @ right.abs())
    return bool(((left @ right).double() - exact).abs().le(bound).all())
