"""The device of a rank: never the CPU if its slot is a GPU."""

from __future__ import annotations

import os
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from tests.trainer.ranks import run_ranks
from trainer import distributed
from trainer.distributed import joined
from trainer.errors import LaunchError, RunError
from trainer.run import gpus_are_given

TOO_OLD = "The NVIDIA driver on your system is too old (found version 12040)."


@pytest.fixture
def unusable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build for CUDA 13.0 on a driver for 12.4, with torch's answers on such a machine."""

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


def _sockets() -> int:
    links = [path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return sum(str(link).startswith("socket:") for link in links)


def _meet(moment: str, world_size: int) -> None:
    """Wait at the store, which is already connected, until every rank has arrived."""
    store = torch.distributed.distributed_c10d._get_default_store()
    store.add(moment, 1)
    while store.add(moment, 0) < world_size:
        time.sleep(0.01)


def _settled_sockets(moment: str, world_size: int) -> int:
    """Return the sockets of this rank while no rank opens one."""
    _meet(f"{moment}, here", world_size)
    count = _sockets()
    _meet(f"{moment}, counted", world_size)
    return count


def _joined() -> tuple[int, int, int]:
    """Return the sockets before and after the join, and after a step's use of the CPU group."""
    before = _sockets()
    with joined("cpu", hang_seconds=60) as ranks:
        after = _settled_sockets("joined", ranks.world_size)
        decision = torch.ones(2)
        posted = torch.distributed.broadcast(decision, 0, group=ranks.cpu_group, async_op=True)
        assert posted is not None
        torch.distributed.barrier(group=ranks.cpu_group)  # of another kind, while that is under way
        posted.wait()
        return before, after, _settled_sockets("talked", ranks.world_size)


def test_ranks_connect_to_those_that_they_talk_to() -> None:
    world_size = 8
    for before, joining, talking in run_ranks(world_size, _joined, initialize=False):
        # Every group of all ranks, connected at once, would be world_size - 1 more.
        assert joining - before < world_size - 1
        assert talking - before < 2 * (world_size - 1)


def _read_the_index() -> None:
    raise KeyError("index")


def test_the_log_of_an_unexpected_failure_names_the_action(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for action in (_read_the_index, partial(_read_the_index)):
        _, error = distributed._try(action)
        assert isinstance(error, RunError)
    assert caplog.messages == ["unexpected failure of _read_the_index"] * 2
