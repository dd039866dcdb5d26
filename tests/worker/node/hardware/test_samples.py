"""Samples of the host: a heartbeat has the available values, and never fails without them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worker.conftest import Place
from trainyard.protocol.node_samples import MAX_DISKS
from worker.api import WorkerApi
from worker.heartbeat import Heart
from worker.node.cgroup import CgroupLimits
from worker.node.hardware import samples
from worker.node.hardware.samples import Probe, Sampler


@pytest.fixture(autouse=True)
def _one_call_without_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(probe: Probe[object]) -> None:
        probe._found = probe._call()

    monkeypatch.setattr(Probe, "start", start)


def test_of_many_folders_the_first_are_sampled(tmp_path: Path) -> None:
    roots = {f"root-{index}": tmp_path for index in range(MAX_DISKS)}
    sample = Sampler(None, {"data_dir": tmp_path, **roots}, seconds=1).sample()
    assert sample is not None
    assert len(sample.host.disks) == MAX_DISKS
    assert sample.host.disks[0].name == "data_dir"
    assert sample.problems == ()


def test_a_sample_that_fails_is_logged_once_and_the_heartbeats_go_on(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place.node.token.write_text("node-token\n")
    sampler = Sampler(None, {"data_dir": place.node.data_dir}, seconds=1)

    def fail() -> tuple[int, int]:
        raise KeyError("MemAvailable")

    with WorkerApi(place.server.url, "node-token") as api:
        heart = Heart(place.local, api, seconds=5, sampler=sampler)
        with monkeypatch.context() as patch:
            patch.setattr(samples, "cgroup_limits", CgroupLimits)
            patch.setattr(samples, "_machine_memory", fail)
            heart.beat()
            heart.beat()
        heart.beat()
    first, second, third = place.server.heartbeats
    assert (first.sample, second.sample) == (None, None)
    assert third.sample is not None
    assert caplog.text.count("heartbeats have no sample of this node") == 1
    assert "KeyError: 'MemAvailable'" in caplog.text
