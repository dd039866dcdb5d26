"""Products on a CPU: the choice of library, and float32 results."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from trainer.kernels import cpu_products
from trainer.kernels.cpu_products import (
    fast_products,
    mkl_lacks_avx512,
    products_are_float32,
    short_attention_by_mkl,
)

HERE = Path("/proc/cpuinfo").read_text()
float32_only = pytest.mark.skipif(
    "avx512f" not in HERE or "amx" in HERE, reason="oneDNN computes in float32 without AMX"
)
AMD = "vendor_id\t: AuthenticAMD\nflags\t\t: avx2 avx512f avx512bw avx512dq avx512vl avx512_bf16\n"


@pytest.fixture
def cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The description of a processor on which MKL lacks AVX-512; this machine may differ."""
    monkeypatch.setattr(cpu_products, "CPU_INFO", path := tmp_path / "cpuinfo")
    monkeypatch.delenv("MKL_CBWR", raising=False)
    path.write_text(AMD)
    return path


@pytest.mark.parametrize(
    ("text", "lacks"),
    [
        (AMD, True),
        (AMD + "vendor_id\t: GenuineIntel\n", True),  # the first processor of the list
        (AMD.replace("AuthenticAMD", "GenuineIntel"), False),
        (AMD.replace("avx512_bf16", "avx512_bf16 amx_tile"), False),
        (AMD.replace("avx512bw ", ""), False),
        ("", False),
    ],
    ids=["AMD", "first counts", "Intel", "AMX", "AVX2", "other system"],
)
def test_only_processors_whose_avx512_mkl_leaves_unused(text: str, lacks: bool, cpu: Path) -> None:
    cpu.write_text(text)
    assert mkl_lacks_avx512(cpu) == lacks
    cpu.unlink()
    assert not mkl_lacks_avx512(cpu)


@float32_only
def test_the_block_alone_selects_the_library(cpu: Path) -> None:
    assert cpu.exists()
    with fast_products(torch.device("cpu")):
        assert torch.get_float32_matmul_precision() == "medium"
        # Gradients of weights and inputs multiply transposed matrices.
        left, right = torch.randn(512, 256), torch.randn(512, 384)
        by_block = left.T @ right
        error = (by_block.double() - left.double().T @ right.double()).abs().max()
    assert error < 512 * 2**-24 * (left.abs().T @ right.abs()).max()
    assert torch.get_float32_matmul_precision() == "highest"
    with fast_products(torch.device("cuda")):
        assert torch.get_float32_matmul_precision() == "highest"


# torch's compiler imports modules that torch deprecates.
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(("tokens", "by_mkl"), [(255, True), (256, False)])
@float32_only
def test_attention_to_short_sequences_keeps_mkl(
    cpu: Path, tokens: int, by_mkl: bool, compiled: bool
) -> None:
    assert cpu.exists()
    inputs = torch.randn(3, 1, 2, tokens, 128)
    outside = with_gradient(attention, inputs)
    torch.set_float32_matmul_precision("medium")
    by_onednn = with_gradient(attention, inputs)
    torch.set_float32_matmul_precision("highest")
    assert not equal(by_onednn, outside)  # the two libraries differ in the last bits
    with fast_products(torch.device("cpu")):
        inside = with_gradient(torch.compile(attention) if compiled else attention, inputs)
        assert torch.get_float32_matmul_precision() == "medium"
    assert equal(inside, outside if by_mkl else by_onednn)
    assert equal(with_gradient(attention, inputs), outside)


def test_attention_in_several_threads_leaves_the_selection() -> None:
    """A model's own code may run several: each selects a library for the whole process."""
    inputs = torch.randn(3, 2, 2, 100, 32)
    interval, threads = sys.getswitchinterval(), torch.get_num_threads()
    sys.setswitchinterval(1e-6)
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("medium")
    try:
        with short_attention_by_mkl(), ThreadPoolExecutor(6) as pool:
            for _ in range(3):
                list(pool.map(attention, [inputs] * 1_000))
                assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.set_num_threads(threads)
        sys.setswitchinterval(interval)


def attention(inputs: torch.Tensor) -> torch.Tensor:
    q, k, v = inputs
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def with_gradient(
    function: Callable[[torch.Tensor], torch.Tensor], inputs: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output of a function, and the gradient of half the sum of its squares."""
    inputs = inputs.detach().requires_grad_()
    output = function(inputs)
    output.backward(output.detach())
    assert inputs.grad is not None
    return output.detach(), inputs.grad


def equal(ones: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(ones, others, strict=True))


def test_a_job_that_configures_mkl_keeps_it(cpu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cpu.exists()
    monkeypatch.setenv("MKL_CBWR", "AVX2")
    with fast_products(torch.device("cpu")):
        assert torch.get_float32_matmul_precision() == "highest"


def test_a_library_that_rounds_to_bfloat16_is_not_used(
    cpu: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cpu.exists()
    assert products_are_float32()
    product = torch.Tensor.__matmul__

    def rounded(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        if left.dtype != torch.float32:
            return product(left, right)
        return product(left.bfloat16().float(), right.bfloat16().float())

    monkeypatch.setattr(torch.Tensor, "__matmul__", rounded)
    assert not products_are_float32()
    with fast_products(torch.device("cpu")):
        assert torch.get_float32_matmul_precision() == "highest"
