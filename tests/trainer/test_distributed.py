"""Which device a rank computes on: never the CPU where its slot is a GPU."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from trainer import distributed
from trainer.distributed import gpus_are_given, joined
from trainer.errors import LaunchError

TOO_OLD = "The NVIDIA driver on your system is too old (found version 12040)."


@pytest.fixture
def unusable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build for CUDA 13.0 on a driver for 12.4, as torch shows itself there."""

    def is_available() -> bool:
        warnings.warn(f"CUDA initialization: {TOO_OLD} Please update it.", stacklevel=1)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(distributed, "cuda_driver", lambda: "550.54.14")


@pytest.mark.parametrize("device", ["auto", "cuda"])
@pytest.mark.usefixtures("unusable")
def test_a_gpu_that_torch_cannot_use_is_named_and_no_cpu_takes_its_place(
    device: Literal["auto", "cuda"], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-b")
    with pytest.raises(LaunchError) as refused, joined(device, hang_seconds=60):
        pass
    message = str(refused.value)
    for part in (
        f"resources.device='{device}', CUDA_VISIBLE_DEVICES='GPU-b'",
        f"torch {torch.__version__} was built for CUDA 13.0",
        "the NVIDIA driver is 550.54.14",
        TOO_OLD,
        "it needs a driver for CUDA 13.0 or newer, or device='cpu'",
    ):
        assert part in message
    assert not torch.distributed.is_initialized()


def test_a_build_without_cuda_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    wanted = "was built without CUDA.*it needs a build of torch with CUDA, or device='cpu'"
    with pytest.raises(LaunchError, match=wanted), joined("auto", hang_seconds=60):
        pass


@pytest.mark.parametrize(
    ("visible", "files", "given"),
    [
        (None, (), False),
        (None, ("nvidiactl",), False),  # a driver without a GPU
        (None, ("nvidiactl", "nvidia0"), True),
        ("", ("nvidia0",), False),
        ("-1", ("nvidia0",), False),
        ("GPU-b", (), True),
    ],
)
def test_what_is_given_counts_and_not_what_torch_counts(
    visible: str | None, files: tuple[str, ...], given: bool, tmp_path: Path
) -> None:
    for name in files:
        (tmp_path / name).touch()
    environment: dict[str, Any] = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert gpus_are_given(environment, devices=tmp_path) is given


@pytest.mark.usefixtures("unusable")
def test_a_cpu_slot_asks_for_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "RANK" not in os.environ
    with joined("auto", hang_seconds=60) as ranks:
        assert ranks.device.type == "cpu"
