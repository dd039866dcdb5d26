"""Reports of a node: settings, hardware, roots; and the watches of a run."""

from __future__ import annotations

import multiprocessing
import os
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from tests.worker.conftest import Place
from tests.worker.fake_server import JOIN_TOKEN, NODE_TOKEN
from trainyard.base.ids import make_id
from trainyard.base.labels import parse_labels
from trainyard.protocol.attempt import AttemptSpec
from trainyard.protocol.node_samples import Accelerator, AcceleratorSample
from trainyard.protocol.rest.errors import UnauthenticatedError
from trainyard.run.directory import Phase
from trainyard.run.record_base import to_json
from trainyard.run.records import Heartbeat
from trainyard.spec.auto import DeviceKind
from trainyard.spec.storage_uri import ROOT_FILE
from worker.api import WorkerApi
from worker.launch import prepare_run
from worker.node.cgroup import CgroupLimits, cgroup_limits
from worker.node.hardware.accelerators import open_accelerators
from worker.node.hardware.devices import Devices, find_devices
from worker.node.host_memory import MemoryWatch
from worker.node.node_store import NodeStore
from worker.registration import own_token, register
from worker.settings import Settings, parse_roots
from worker.supervisor.hang import HangWatch
from worker.upkeep.roots import identify_roots

ID = make_id(milliseconds=1, entropy=bytes(10))


class FakeGpus:
    """Two GPUs without a driver."""

    driver = "580.1"

    def devices(self) -> tuple[Accelerator, ...]:
        return (
            Accelerator(index=0, uuid="GPU-a", name="H200", memory_bytes=150 << 30),
            Accelerator(index=1, uuid="GPU-b", name="H200", memory_bytes=149 << 30),
        )

    def sample(self) -> tuple[AcceleratorSample, ...]:
        return ()


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_NODE_NAME", "gpu-01")
    monkeypatch.setenv("TRAINYARD_ROOTS", "checkpoints=s3://bucket/c, data=/srv/d")
    monkeypatch.setenv("TRAINYARD_SLOTS", "3")
    monkeypatch.setenv("TRAINYARD_LABELS", "zone=a,fabric=ib-1")
    settings = Settings()
    assert (settings.node_name, settings.slots) == ("gpu-01", 3)
    assert parse_labels(settings.labels) == {"zone": "a", "fabric": "ib-1"}
    assert settings.root_paths() == {"checkpoints": "s3://bucket/c", "data": "/srv/d"}


def test_malformed_labels_are_refused() -> None:
    with pytest.raises(ValidationError, match="'zone' is not key=value"):
        Settings(labels="zone")


def test_without_roots_the_data_folder_holds_them(tmp_path: Path) -> None:
    roots = Settings(data_dir=tmp_path).root_paths()
    assert roots == {name: str(tmp_path / name) for name in ("checkpoints", "data")}


@pytest.mark.parametrize(
    "text",
    [
        *("data", "data=relative", "Data=/a", "=/a", "data=/a,data=/b", "data=gs://bucket"),
        *("data=s3://", "data=s3://key:secret@bucket", "data=s3://bucket/../x", "data=s3://b/x?y"),
    ],
)
def test_bad_roots_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"root|name=path|object store"):
        parse_roots(text)
    with pytest.raises(ValidationError):
        Settings(roots=text)


@pytest.mark.parametrize("limit", [None, 1, 5])
def test_a_cpu_node_offers_its_cores_but_at_least_four(
    limit: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = CgroupLimits(cores=limit)
    monkeypatch.setattr("worker.node.hardware.devices.cgroup_limits", lambda: limits)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))
    devices = find_devices(None)
    assert devices.hardware.cores == (limit or 8)
    assert devices.hardware.slots == max(4, limit or 8)
    assert devices.hardware.device == "cpu"
    assert devices.visible == ()
    assert devices.threads_per_slot >= 1
    assert devices.hardware.device_memory_bytes * devices.hardware.slots > 0
    assert find_devices(None, slots=2).hardware.slots == 2


def test_a_gpu_node_offers_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    devices = find_devices(FakeGpus())
    assert (devices.hardware.device, devices.hardware.slots) == ("cuda", 2)
    assert devices.hardware.device_memory_bytes == 149 << 30
    assert devices.hardware.driver == "580.1"
    assert devices.visible == ("GPU-a", "GPU-b")
    assert find_devices(FakeGpus(), slots=1).visible == ("GPU-a",)
    assert find_devices(FakeGpus(), device="cpu").hardware.accelerators == ()
    with pytest.raises(ValueError, match="slots=3, but this node has 2 GPUs"):
        find_devices(FakeGpus(), slots=3)
    with pytest.raises(ValueError, match="lists no GPU"):
        find_devices(None, device="cuda")


def test_a_machine_with_gpus_and_no_driver_is_no_cpu_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert open_accelerators(device_files=tmp_path) is None
    (tmp_path / "nvidia3").touch()
    with pytest.raises(ValueError, match=r"/dev/nvidia3.*NVML fails.*TRAINYARD_DEVICE=cpu"):
        open_accelerators(device_files=tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # the worker itself is given none
    assert open_accelerators(device_files=tmp_path) is None


def test_a_cgroup_limits_cores_and_memory(tmp_path: Path) -> None:
    inner = tmp_path / "slice" / "worker"
    inner.mkdir(parents=True)
    files = {
        tmp_path: {"cpu.max": "max 100000", "memory.max": "max"},
        inner.parent: {
            "cpu.max": "250000 100000",
            "memory.max": "8000",
            "memory.current": "5000",
            "memory.stat": "anon 3000\ninactive_file 1500\n",
        },
        inner: {"cpu.max": "400000 100000", "memory.max": "9000", "memory.current": "10"},
    }
    for folder, content in files.items():
        (folder / "cgroup.controllers").touch()
        for name, text in content.items():
            (folder / name).write_text(f"{text}\n")
    assert cgroup_limits(inner) == CgroupLimits(2, 8000, 3500)
    assert cgroup_limits(tmp_path) == CgroupLimits()


@pytest.mark.parametrize("in_container", [False, True])
def test_cgroups_of_version_1_limit_cores_and_memory(tmp_path: Path, *, in_container: bool) -> None:
    cpu, memory = tmp_path / "cpu,cpuacct", tmp_path / "memory"
    inner, root = ("", "/slice/worker") if in_container else ("slice/worker", "/")
    files = {
        cpu / inner: {"cpu.cfs_quota_us": "350000", "cpu.cfs_period_us": "100000"},
        memory / inner: {
            "memory.limit_in_bytes": "8000",
            "memory.usage_in_bytes": "5000",
            "memory.stat": "inactive_file 1\ntotal_inactive_file 1500",
        },
    }
    if not in_container:
        files[cpu / "slice"] = {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"}
        files[memory] = {"memory.limit_in_bytes": "9223372036854771712"}
    for folder, content in files.items():
        folder.mkdir(parents=True, exist_ok=True)
        for each in (folder, *folder.parents):
            if each.is_relative_to(cpu) or each.is_relative_to(memory):
                (each / "cgroup.procs").touch()
        for name, text in content.items():
            (folder / name).write_text(f"{text}\n")
    process = tmp_path / "self"
    process.mkdir()
    (process / "cgroup").write_text(
        "5:memory:/slice/worker\n4:cpu,cpuacct:/slice/worker\n1:name=systemd:/init\n"
    )
    mount = "30 25 0:26 {root} {folder} rw,nosuid shared:9 - cgroup cgroup rw,{controllers}\n"
    (process / "mountinfo").write_text(
        mount.format(root=root, folder=cpu, controllers="cpu,cpuacct")
        + mount.format(root=root, folder=memory, controllers="memory")
    )
    assert cgroup_limits(process=process) == CgroupLimits(3, 8000, 3500)
    (process / "cgroup").write_text("1:name=systemd:/init\n")
    assert cgroup_limits(process=process) == CgroupLimits()


def test_ranks_get_the_kind_of_slot_that_was_allocated(place: Place) -> None:
    def prepared(allocated: DeviceKind, *, offers: str) -> AttemptSpec:
        hardware = place.local.devices.hardware.model_copy(update={"device": offers})
        visible = ("GPU-a", "GPU-b") if offers == "cuda" else ()
        local = replace(place.local, devices=Devices(hardware, visible))
        attempt_id = place.grant()
        claim = place.server.attempts[attempt_id].claim
        attempt = claim.attempt.model_copy(update={"device": allocated})
        run = prepare_run(local, attempt_id, claim.model_copy(update={"attempt": attempt}))
        return AttemptSpec.model_validate_json(Path(run.attempt).read_bytes())

    assert prepared("cuda", offers="cuda").device == "cuda"
    assert prepared("cpu", offers="cpu").device == "cpu"
    assert prepared("cpu", offers="cuda").device == "cpu"
    with pytest.raises(ValueError, match="'cuda' was allocated, but this node offers CPU slots"):
        prepared("cuda", offers="cpu")


def test_a_node_whose_token_was_revoked_joins_anew(place: Place) -> None:
    node, url = place.local, place.server.url
    node.store.token.write_text("revoked")
    settings = Settings(url=url, join_token=JOIN_TOKEN, labels="zone=a")
    with WorkerApi(url, token=None) as api:
        assert register(settings, node, api, roots={}).heartbeat_seconds == 0.2
        assert own_token(node.store) == api.token == NODE_TOKEN
        assert node.store.server_url == url
        assert place.server.registrations[-1].labels == {"zone": "a"}
        node.store.token.write_text("revoked")
        with pytest.raises(UnauthenticatedError):
            register(Settings(url=url), node, api, roots={})


def test_a_node_that_has_joined_starts_without_its_join_token(
    place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node, url = place.local, place.server.url
    empty = tmp_path / "join-token"
    empty.touch(0o600)
    settings = Settings(url=url, join_token_file=empty)
    with WorkerApi(url, token=None) as api:
        node.store.token.write_text(NODE_TOKEN)
        assert register(settings, node, api, roots={}).node_token is None
        assert api.token == NODE_TOKEN
        for own in ("revoked", ""):
            node.store.token.write_text(own)
            with pytest.raises(ValueError, match=r"TRAINYARD_JOIN_TOKEN_FILE=.* has 0 lines"):
                register(settings, node, api, roots={})
    assert "the node's own token is not valid any more: " in caplog.text


def identify_in(folder: str) -> str:
    return identify_roots({"data": folder})["data"]


def test_all_who_see_a_root_say_the_same(tmp_path: Path) -> None:
    folder = str(tmp_path / "root")
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        ids = pool.map(identify_in, [folder] * 16)
    assert len(set(ids)) == 1
    assert [path.name for path in Path(folder).iterdir()] == [ROOT_FILE]
    assert identify_in(str(tmp_path / "other")) != ids[0]


def test_a_root_that_cannot_prove_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="root data="):
        identify_roots({"data": str(tmp_path / "file" / "below")})
    (tmp_path / ROOT_FILE).write_text("something else")
    with pytest.raises(ValueError, match="no UUID"):
        identify_roots({"data": str(tmp_path)})


def test_an_attempt_has_one_lock(tmp_path: Path) -> None:
    node = NodeStore(tmp_path)
    assert node.lock(ID) is None
    assert not node.is_held(ID)
    lock = node.lock(ID, create=True)
    assert lock is not None
    assert node.lock(ID, create=True) is None
    assert node.is_held(ID)
    assert node.live() == [ID]
    os.close(lock.fd)
    assert not node.is_held(ID)
    for bad in ("../x", "", "x" * 26):
        with pytest.raises(ValueError, match="no id"):
            node.lock(bad, create=True)


def test_each_phase_has_its_own_limit_of_silence(tmp_path: Path) -> None:
    now = 0.0
    path = tmp_path / "heartbeat.json"
    watch = HangWatch(path, hang_seconds=30, clock=lambda: now)

    def beat(phase: Phase, step: int) -> None:
        path.write_text(to_json(Heartbeat(phase=phase, step=step, time=0)))
        assert watch.silence() is None

    now = 599
    assert watch.silence() is None
    now = 601
    assert "phase starting" in (watch.silence() or "")
    beat(Phase.TRAINING, 1)
    now += 29
    assert watch.silence() is None
    now += 2
    assert "phase training at step 1 (limit 30 s" in (watch.silence() or "")
    beat(Phase.SAVING, 1)
    now += 3599
    assert watch.silence() is None
    now += 2
    assert "phase saving" in (watch.silence() or "")
    path.write_text("half a rec")
    assert watch.silence() is not None


def test_memory_ran_out_when_the_count_rises_around_a_death(tmp_path: Path) -> None:
    vmstat = tmp_path / "vmstat"

    def watch_of(*counts: int) -> bool:
        *before, last = counts
        vmstat.write_text(f"pgfault 5\noom_kill {before[0]}\n")
        watch = MemoryWatch(vmstat)
        for count in before:
            vmstat.write_text(f"oom_kill {count}\n")
            watch.poll(failed=False)
        vmstat.write_text(f"oom_kill {last}\n")
        watch.poll(failed=True)
        return watch.ran_out

    assert watch_of(3, 3, 4)
    assert not watch_of(3, 4, 4)  # earlier: another process
    assert not MemoryWatch(tmp_path / "none").ran_out
