"""Differences between versions of torch: their module works on this version."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch._functorch import config as compiler

from trainer import torch_versions
from trainer.errors import LaunchError
from trainer.torch_versions import (
    allocate_buffers,
    count_no_bytes_for_device_meshes,
    refuse_split_backward,
    release_buffers,
)

ROOT = Path(__file__).resolve().parents[2]


def test_the_lowest_version_is_the_one_that_a_trainer_asks_for() -> None:
    lowest = re.search(r"torch>=([\d.]+)", (ROOT / "pyproject.toml").read_text())
    assert lowest is not None
    assert f"from {lowest[1]} to" in (torch_versions.__doc__ or "")
    table = (ROOT / "docs" / "trainer.md").read_text()
    assert f"| {lowest[1]}.0 |" in table


@pytest.mark.parametrize("schedule", ["InterleavedZeroBubble", "ZBVZeroBubble"])
def test_a_schedule_that_splits_backward_is_refused_where_torch_cannot(
    schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_versions, "SPLITS_BACKWARD", False)
    with pytest.raises(LaunchError, match=rf"pp_schedule='{schedule}'.*legal here: GPipe, 1F1B"):
        refuse_split_backward(schedule)
    refuse_split_backward("1F1B")
    monkeypatch.setattr(torch_versions, "SPLITS_BACKWARD", True)
    refuse_split_backward(schedule)


def test_a_buffer_has_memory_only_while_it_is_received_into() -> None:
    # torch's descriptions of received tensors, of tensors without a buffer (2.15), and of inputs.
    received = [
        SimpleNamespace(buffer=torch.zeros(2, 3, dtype=torch.bfloat16)),
        SimpleNamespace(buffer=None),
        SimpleNamespace(),
    ]
    release_buffers(received)
    release_buffers(received)
    assert received[0].buffer.is_meta
    assert received[1].buffer is None
    allocate_buffers(received, torch.device("cpu"))
    buffer = received[0].buffer
    assert (buffer.shape, buffer.dtype, buffer.device.type) == ((2, 3), torch.bfloat16, "cpu")
    assert received[1].buffer is None


def test_the_memory_budget_has_its_switch_or_needs_none() -> None:
    name = "unsafe_treat_script_objects_as_zero_size"
    with compiler.patch({name: False} if hasattr(compiler, name) else {}):
        count_no_bytes_for_device_meshes()
        assert getattr(compiler, name, True) is True
