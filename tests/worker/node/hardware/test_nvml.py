"""GPUs by the real `pynvml` against an NVML that is compiled for the test."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.worker.node.hardware.fake_nvml import GIBIBYTE, FakeNvml, gpu

HERE = Path(__file__).parent

FULL = {
    "count": 1,
    **gpu(
        0,
        pci="00000000:1B:00.0",
        memory_used=GIBIBYTE,
        utilization=87,
        power=612_500,
        temperature=64,
        sm_clock=1980,
        memory_clock=2619,
        throttle=0x4 | 0x40 | 0x1,
        pcie_replays=2,
        remap_pending=1,
        ecc00=5,
        ecc10=1,
        ecc01=50,
        ecc11=3,
        field38=1,
        field45=2,
        field59=4,
    ),
}


def look(
    nvml: FakeNvml,
    tmp_path: Path,
    lines: dict[str, Any],
    *,
    wanted: str = '"uuid"',
    visible: str | None = None,
    open_seconds: float = 30,
) -> dict[str, Any]:
    """Return a worker's findings on a machine whose NVML returns these values."""
    devices = tmp_path / "dev"
    devices.mkdir()
    (devices / "nvidia0").touch()
    environment = {**os.environ, **nvml.giving(lines)}
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    if visible is not None:
        environment["CUDA_VISIBLE_DEVICES"] = visible
    script = HERE / "print_samples.py"
    words = [sys.executable, str(script), str(devices), wanted, str(open_seconds)]
    root = HERE.parents[3]
    environment["PYTHONPATH"] = f"{root}:{root / 'library'}"
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_gpu_gives_its_inventory_and_every_value(nvml: FakeNvml, tmp_path: Path) -> None:
    found = look(nvml, tmp_path, FULL | {"driver": "580.65", "event": "0 79"}, wanted='"code":79')
    (xid,) = found["sample"]["accelerators"][0].pop("xids")
    assert xid["code"] == 79
    assert 0 <= xid["age_seconds"] < 30
    assert found["visible"] == ["GPU-0"]
    hardware = found["hardware"]
    assert (hardware["device"], hardware["slots"], hardware["driver"]) == ("cuda", 1, "580.65")
    assert hardware["accelerators"] == [
        {
            "index": 0,
            "uuid": "GPU-0",
            "name": "H100",
            "memory_bytes": 80 * GIBIBYTE,
            "pci_address": "00000000:1B:00.0",
            "parent": None,
            "listed": True,
        }
    ]
    assert found["sample"]["accelerators"] == [
        {
            "uuid": "GPU-0",
            "problem": None,
            "utilization_ratio": 0.87,
            "memory_used_bytes": GIBIBYTE,
            "power_watts": 612.5,
            "temperature_celsius": 64,
            "sm_clock_hertz": 1_980_000_000,
            "memory_clock_hertz": 2_619_000_000,
            "throttle_reasons": ["power cap", "temperature (hardware)"],
            "nvlink_errors": 7,
            "pcie_replays": 2,
            "ecc_corrected": 5,
            "ecc_uncorrected": 1,
            "ecc_corrected_lifetime": 50,
            "ecc_uncorrected_lifetime": 3,
            "row_remap_pending": True,
            "row_remap_failed": False,
            "foreign": [],
        }
    ]
    assert found["sample"]["problems"] == []


def test_a_value_that_a_gpu_lacks_is_null(nvml: FakeNvml, tmp_path: Path) -> None:
    lines = {"count": 2, **gpu(0, utilization=5), **gpu(1, power=100_000)}
    found = look(nvml, tmp_path, lines)
    assert found["visible"] == ["GPU-0", "GPU-1"]
    first, second = found["sample"]["accelerators"]
    assert (first["utilization_ratio"], first["power_watts"], first["problem"]) == (
        0.05,
        None,
        None,
    )
    assert (second["utilization_ratio"], second["power_watts"]) == (None, 100)
    assert second["nvlink_errors"] is None
    assert second["row_remap_failed"] is None


def test_a_process_that_holds_much_memory_is_listed(nvml: FakeNvml, tmp_path: Path) -> None:
    pid = os.getpid()
    held = {"0.process": f"{pid} {GIBIBYTE}", "1.process": f"{pid} {50 << 20}"}
    desktop = {"2.graphics": f"{pid} {GIBIBYTE}", "3.graphics": f"{pid} {50 << 20}"}
    gpus = {key: value for index in range(4) for key, value in gpu(index).items()}
    found = look(nvml, tmp_path, {"count": 4, **gpus} | held | desktop)
    first, second, third, fourth = found["sample"]["accelerators"]
    (process,) = first["foreign"]
    assert (process["pid"], process["memory_bytes"]) == (os.getpid(), GIBIBYTE)
    assert process["user"] == pwd.getpwuid(os.getuid()).pw_name
    assert [p["pid"] for p in third["foreign"]] == [pid]
    assert (second["foreign"], fourth["foreign"]) == ([], [])


def test_a_gpu_in_mig_mode_offers_its_instances_alone(nvml: FakeNvml, tmp_path: Path) -> None:
    lines = {
        "count": 2,
        **gpu(0, mig=1, power=200_000),
        **{f"0:{i}.uuid": f"MIG-{i}" for i in (0, 2)},
        **{f"0:{i}.name": "H100 MIG 1g.10gb" for i in (0, 2)},
        **{f"0:{i}.memory": 10 * GIBIBYTE for i in (0, 2)},
        **gpu(1, mig=0),
    }
    found = look(nvml, tmp_path, lines)
    assert found["visible"] == ["MIG-0", "MIG-2", "GPU-1"]
    instances = found["hardware"]["accelerators"]
    assert [each["parent"] for each in instances] == ["GPU-0", "GPU-0", None]
    assert [each["index"] for each in instances] == [0, 0, 1]
    assert found["hardware"]["device_memory_bytes"] == 10 * GIBIBYTE
    sampled = {each["uuid"]: each for each in found["sample"]["accelerators"]}
    assert sampled.keys() == {"GPU-0", "MIG-0", "MIG-2", "GPU-1"}
    assert sampled["GPU-0"]["power_watts"] == 200
    assert sampled["MIG-0"]["memory_used_bytes"] == 0


@pytest.mark.parametrize(
    ("visible", "slots"),
    [
        ("1,0", ["GPU-1", "GPU-0"]),
        ("GPU-1", ["GPU-1"]),
        ("0,7", ["GPU-0"]),
        ("0,0", ["GPU-0"]),
        ("1,GPU-0,GPU-1", ["GPU-1", "GPU-0"]),
    ],
)
def test_a_worker_offers_the_gpus_that_it_sees_itself(
    nvml: FakeNvml, tmp_path: Path, visible: str, slots: list[str]
) -> None:
    lines = {"count": 2, **gpu(0), **gpu(1)}
    assert look(nvml, tmp_path, lines, visible=visible)["visible"] == slots


@pytest.mark.parametrize("visible", ["7", "GPU-7,NoDevFiles"])
def test_a_worker_that_sees_none_of_the_gpus_is_no_cpu_node(
    nvml: FakeNvml, tmp_path: Path, visible: str
) -> None:
    refused = look(nvml, tmp_path, {"count": 2, **gpu(0), **gpu(1)}, visible=visible)["refused"]
    assert refused == (
        f"CUDA_VISIBLE_DEVICES='{visible}' names no GPU of this machine, which are 0 (GPU-0), "
        "1 (GPU-1); set TRAINYARD_DEVICE=cpu to offer CPU slots"
    )


def test_a_lost_gpu_has_a_problem_and_the_others_have_values(
    nvml: FakeNvml, tmp_path: Path
) -> None:
    lines = {"count": 2, **gpu(0, utilization=5), **gpu(1, utilization=6), "1.lost": 15}
    found = look(nvml, tmp_path, lines)
    first, second = found["sample"]["accelerators"]
    assert (first["problem"], first["utilization_ratio"]) == (None, 0.05)
    assert (second["problem"], second["utilization_ratio"]) == ("GPU is lost", None)


def test_a_gpu_that_is_lost_before_the_start_leaves_the_others(
    nvml: FakeNvml, tmp_path: Path
) -> None:
    lines = {"count": 3, **gpu(0, utilization=5), **gpu(1), "1.error": 15, **gpu(2)}
    found = look(nvml, tmp_path, lines)
    assert found["visible"] == ["GPU-0", "GPU-2"]
    sampled = {each["uuid"]: each for each in found["sample"]["accelerators"]}
    assert sampled.keys() == {"GPU-0", "GPU-2", "index 1"}
    assert (sampled["GPU-0"]["problem"], sampled["GPU-0"]["utilization_ratio"]) == (None, 0.05)
    assert sampled["index 1"]["problem"] == "GPU is lost"


def test_a_gpu_without_permission_is_left_out(nvml: FakeNvml, tmp_path: Path) -> None:
    found = look(nvml, tmp_path, {"count": 2, **gpu(0), "0.error": 4, **gpu(1)})
    assert found["visible"] == ["GPU-1"]
    (sampled,) = found["sample"]["accelerators"]
    assert (sampled["uuid"], sampled["problem"]) == ("GPU-1", None)


def test_xids_are_collected_of_the_others_when_one_gpu_refuses(
    nvml: FakeNvml, tmp_path: Path
) -> None:
    lines = {"count": 2, **gpu(0), "0.events_error": 15, **gpu(1), "event": "1 79"}
    found = look(nvml, tmp_path, lines, wanted='"code":79')
    codes = [[x["code"] for x in each["xids"]] for each in found["sample"]["accelerators"]]
    assert codes == [[], [79]]


def test_a_call_that_hangs_is_a_problem_of_the_node(nvml: FakeNvml, tmp_path: Path) -> None:
    lines = {**FULL, "hang": "nvmlDeviceGetPowerUsage"}
    found = look(nvml, tmp_path, lines, wanted="have not answered")
    assert found["took"] < 1
    problem = found["sample"]["accelerators_problem"]
    assert problem.startswith("accelerators have not answered for ")
    assert found["sample"]["accelerators"] == []
    (disk,) = found["sample"]["host"]["disks"]
    assert disk["name"] == "data_dir"
    assert 0 < disk["free_bytes"] <= disk["total_bytes"]


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ({"count": 1, **gpu(0), "hang": "nvmlInit"}, "no answer within 0.5 s"),
        ({"init_error": 18}, "mismatch"),
        ({"count": 0}, "it lists none"),
        ({"count": 1, **gpu(0), "0.error": 15}, "GPU is lost"),
        ({"count": 2, **gpu(0), "0.error": 15, **gpu(1), "1.error": 4}, "Insufficient Permissions"),
    ],
)
def test_a_machine_whose_gpus_are_not_listed_is_no_cpu_node(
    nvml: FakeNvml, tmp_path: Path, lines: dict[str, Any], named: str
) -> None:
    open_seconds = 0.5 if "hang" in lines else 30
    refused = look(nvml, tmp_path, lines, open_seconds=open_seconds)["refused"]
    assert "this machine has GPUs (/dev/nvidia0), but NVML fails: " in refused
    assert named in refused
    assert "TRAINYARD_DEVICE=cpu" in refused
