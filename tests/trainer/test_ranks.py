"""The harness itself: results by rank, failures with their traceback, no process left behind."""

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.trainer.ranks import RankError, run_ranks
from trainyard.protocol.attempt import AttemptSpec
from trainyard.protocol.manifest import Manifest
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout


def _sum_over_ranks(addend: int) -> tuple[int, torch.Tensor]:
    total = torch.tensor([dist.get_rank() + addend])
    dist.all_reduce(total)
    return dist.get_rank(), total


def test_results_come_by_rank() -> None:
    results = run_ranks(3, _sum_over_ranks, 10)
    assert [rank for rank, _ in results] == [0, 1, 2]
    assert [total.item() for _, total in results] == [33, 33, 33]


def _what_was_loaded() -> tuple[bool, bool, bool]:
    read_at_each_start = (JobSpec, AttemptSpec, Layout, Manifest)
    return (
        "trainer.loop.train" in sys.modules,
        all(model.__pydantic_complete__ for model in read_at_each_start),
        gc.get_freeze_count() > 0,
    )


def test_a_rank_starts_with_the_trainer_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # also where the first test that starts ranks has done this
    assert run_ranks(1, _what_was_loaded, initialize=False) == [(True, True, True)]


def _own_process_group() -> tuple[int, str, int]:
    assert not dist.is_initialized()
    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    dist.destroy_process_group()
    return int(total.item()), os.environ["LOCAL_RANK"], torch.get_num_threads()


def test_ranks_may_initialize_themselves() -> None:
    assert run_ranks(2, _own_process_group, initialize=False) == [(2, "0", 1), (2, "1", 1)]


def _fail_on_rank_1() -> None:
    if dist.get_rank() == 1:
        raise LookupError("the needle")
    dist.barrier()


def test_a_failure_names_rank_and_traceback() -> None:
    with pytest.raises(RankError, match=r"(?s)rank 1 failed.*_fail_on_rank_1.*the needle"):
        run_ranks(2, _fail_on_rank_1)


def _die_on_rank_0() -> None:
    if dist.get_rank() == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


def test_a_killed_rank_is_named() -> None:
    with pytest.raises(RankError, match="rank 0 died with exit code -9"):
        run_ranks(2, _die_on_rank_0)


def _write_pid_and_sleep(folder: str) -> None:
    Path(folder, os.environ["RANK"]).write_text(str(os.getpid()))
    time.sleep(600)


def test_ranks_die_with_a_killed_parent(tmp_path: Path) -> None:
    script = (
        "from tests.trainer import ranks, test_ranks\n"
        f"ranks.run_ranks(2, test_ranks._write_pid_and_sleep, {str(tmp_path)!r})\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script])
    try:
        _until(lambda: len([f for f in tmp_path.iterdir() if f.read_text()]) == 2)
        pids = [int(file.read_text()) for file in tmp_path.iterdir()]
    finally:
        parent.kill()
        parent.wait()
    _until(lambda: not any(_alive(pid) for pid in pids))


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # before it is opened, or before it is read
        return False


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 100  # two processes import torch, one after the other
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
