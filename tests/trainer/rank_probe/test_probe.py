"""The probe on CPU ranks of two nodes: nothing without a fault, and each planted fault by name."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from tests.trainer.ranks import run_ranks
from trainer.rank_probe.__main__ import probe
from trainyard.protocol.rank_probe.probe_values import ProbeValue
from trainyard.prove.figures import Figure
from trainyard.prove.rank_probe.probe_job import ProbedAttempt, RankValues, read_values
from trainyard.prove.rank_probe.probe_verdict import judge

NODES = "aabb"
"""Name of the node of each rank."""
HOUR = 3600.0


@contextmanager
def scaled_gradient() -> Iterator[None]:
    """Multiply the gradient by 1.001."""
    backward = torch.Tensor.backward

    def scaled(loss: torch.Tensor) -> None:
        backward(loss, gradient=torch.tensor(1.001))  # type: ignore[no-untyped-call]

    with patch.object(torch.Tensor, "backward", scaled):
        yield


@contextmanager
def half_speed() -> Iterator[None]:
    """Compute each product twice."""
    product = torch.mm

    def twice(*given: torch.Tensor, **options: Any) -> torch.Tensor:
        product(*given, **options)
        return product(*given, **options)

    with patch.object(torch, "mm", twice):
        yield


@contextmanager
def slow_disk() -> Iterator[None]:
    """Let each fsync take more than half a second."""
    sync = os.fsync

    def slow(file: int) -> None:
        time.sleep(0.6)
        sync(file)

    with patch.object(os, "fsync", slow):
        yield


@contextmanager
def full_disk() -> Iterator[None]:
    """Let each fsync fail."""
    with patch.object(os, "fsync", side_effect=OSError(28, "No space left on device")):
        yield


@contextmanager
def clock_ahead() -> Iterator[None]:
    """Set the wall clock an hour ahead."""
    now = time.time
    with patch.object(time, "time", lambda: now() + HOUR):
        yield


@contextmanager
def slow_link() -> Iterator[None]:
    """Let each large transfer to this rank take a tenth of a second."""
    receive = dist.recv

    def slow(tensor: torch.Tensor, *given: Any, **options: Any) -> int | None:
        if tensor.numel() > 1000:
            time.sleep(0.1)
        return receive(tensor, *given, **options)

    with patch.object(dist, "recv", slow):
        yield


Plants = Mapping[int, Callable[[], Any]]


def probe_one(root: str, nodes: str, plants: Plants) -> None:
    """Probe this rank as a slot of its node."""
    rank = int(os.environ["RANK"])
    name = nodes[rank]
    node = Path(root, name)
    os.environ |= {
        "LOCAL_RANK": str(rank - nodes.index(name)),
        "LOCAL_WORLD_SIZE": str(nodes.count(name)),
        "TRAINYARD_RUN": str(node),
    }
    logging.basicConfig(filename=node / f"log-{rank}", level=logging.INFO)
    with ExitStack() as stack:
        if rank in plants:
            stack.enter_context(plants[rank]())
        probe(80, disk_mib=4, root="checkpoints")


def run_probe(root: Path, plants: Plants | None = None, *, nodes: str = NODES) -> ProbedAttempt:
    """Run the probe on all ranks; return its values."""
    created = time.time()
    for node in dict.fromkeys(nodes):
        storage = root / node / "storage"
        storage.mkdir(parents=True)
        attempt = {
            "job_id": "probe",
            "layout": {"dp_shard": len(nodes)},
            "device": "cpu",
            "roots": {"checkpoints": str(storage)},
        }
        (root / node / "attempt.json").write_text(json.dumps(attempt))
    run_ranks(len(nodes), probe_one, str(root), nodes, plants or {}, initialize=False)
    return ProbedAttempt(values_in(root), tuple(nodes), "cpu", created, time.time())


def values_in(root: Path) -> RankValues:
    """Return the values in the run directories, as the API returns them."""
    lines = [
        json.loads(line)
        for path in sorted([*root.glob("*/metrics.jsonl"), *root.glob("*/metrics/*.jsonl")])
        for line in path.read_text().splitlines()
    ]
    rows = [
        f"1,{line['step']},{line['time']},{name},{value}"
        for line in lines
        for name, value in line["values"].items()
    ]
    return read_values(["attempt,step,time,name,value", *rows])


def probe_files(root: Path) -> list[Path]:
    return list(root.rglob(".probe-*"))


def held(figures: list[Figure], prefix: str) -> bool:
    """Return whether figures with a prefix exist and are all within their bounds."""
    found = [figure for figure in figures if figure.name.startswith(prefix)]
    assert found, prefix
    return all(figure.held for figure in found)


@pytest.mark.parametrize("nodes", ["aabb", "abb", "a"])
def test_equal_ranks_have_equal_gradients_and_no_finding(tmp_path: Path, nodes: str) -> None:
    """The disks of a busy machine may be slow, so only their presence is checked."""
    verdict = judge(run_probe(tmp_path, nodes=nodes))
    assert [
        found for found in verdict.findings if "folder" not in found and "root" not in found
    ] == []
    for prefix in ("missing_values", "gradient/", "speed/", "clock/"):
        assert held(verdict.figures, prefix)
    assert len(nodes) == 1 or held(verdict.figures, "network/link")
    assert len([figure for figure in verdict.figures if figure.name.startswith("disk/")]) == 6
    assert probe_files(tmp_path) == []


def test_each_planted_fault_is_named(tmp_path: Path) -> None:
    plants = {0: slow_disk, 1: scaled_gradient, 2: clock_ahead, 3: half_speed}
    found = judge(run_probe(tmp_path, plants)).findings
    expected = (
        "rank 1 on node a: its gradient is 1.0e-03 larger than that of 3 other ranks",
        "rank 3 on node b: its matrix products take ",
        "node a: its storage root writes ",
        "node a: its data folder writes ",
        "node a: a small fsync in its storage root takes 0.6",
        "node b: its clock is at least 35",
    )
    for text in expected:
        assert any(each.startswith(text) for each in found), (text, found)
    assert not any(each.startswith("rank 0") for each in found), found


def test_a_slow_link_is_named_and_a_failed_measurement_costs_no_other(tmp_path: Path) -> None:
    attempt = run_probe(tmp_path, {0: full_disk, 3: slow_link})
    verdict = judge(attempt)
    (link,) = [found for found in verdict.findings if found.startswith("link")]
    assert link.startswith("link from rank 2 on node b to rank 3 on node b: ")
    (missing,) = [found for found in verdict.findings if "no value" in found]
    assert missing.startswith("rank 0 on node a: no value of storage_write, ")
    assert 0 in attempt.values[ProbeValue.LINK]
    assert "No space left on device" in (tmp_path / "a" / "log-0").read_text()
    assert probe_files(tmp_path) == []


def test_the_probe_ends_at_its_time_limit() -> None:
    command = [sys.executable, "-m", "trainer.rank_probe", "--seconds", "0.01"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=80)
    assert ended.returncode == 1
    assert "the probe did not end in 0.01 s, during: " in ended.stderr
