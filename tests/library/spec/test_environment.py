"""The variables that a job without code may set, and their legal values."""

from __future__ import annotations

import time

import pytest

from tests.exploits import BAD_VALUES, COUSINS, shell_by_warnings
from trainyard.spec.environment import ALLOWED, FLAG, environment_problems, is_allowed
from trainyard.spec.job import JobSpec, parse_job_spec

LEGAL = {
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "^INIT,NET",
    "NCCL_ALGO": "Ring,Tree",
    "NCCL_SOCKET_IFNAME": "=eth0,ib0",
    "NCCL_IB_HCA": "^mlx5_0:1,mlx5_1",
    "NCCL_IB_GID_INDEX": "-1",
    "GLOO_SOCKET_IFNAME": "enp1s0.100",
    "OMP_NUM_THREADS": "4",
    "OMP_PLACES": "cores(8)",
    "TORCH_LOGS": "+dynamo,-inductor,graph_breaks",
    "PYTORCH_ALLOC_CONF": (
        "expandable_segments:True,roundup_power2_divisions:[256:1,512:2,>:4],max_split_size_mb:512"
    ),
    "PYTORCH_CUDA_ALLOC_CONF": "garbage_collection_threshold:0.8,backend:cudaMallocAsync",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "CUDA_LAUNCH_BLOCKING": "1",
    "TORCH_FR_BUFFER_SIZE": "2000",
    "MEMORY_HISTORY": "100000",
}


def test_tuning_and_debugging_pass() -> None:
    assert environment_problems(LEGAL) == []


def test_the_exploit_and_its_cousins_are_refused_by_name() -> None:
    found = environment_problems(shell_by_warnings("id"))
    assert [problem.pointer for problem in found] == ["/env/PYTHONWARNINGS", "/env/BROWSER"]
    assert "NCCL_{ALGO,BUFFSIZE," in found[0].detail, "what is legal, once"
    assert "NCCL_" not in found[1].detail
    for name, value in COUSINS:
        (problem,) = environment_problems({name: value})
        assert (problem.pointer, value in problem.detail) == (f"/env/{name}", False)


@pytest.mark.parametrize(("name", "value"), BAD_VALUES)
def test_a_value_that_does_not_fit_its_name_is_refused(name: str, value: str) -> None:
    started = time.process_time()
    (problem,) = environment_problems({"NCCL_DEBUG_SUBSYS": "ALL", name: value})
    assert time.process_time() - started < 0.5, "no pattern takes exponential time"
    assert problem.pointer == f"/env/{name}"
    assert problem.detail == f"the value of {name} is not legal; legal: {ALLOWED[name].legal}"


def test_no_name_refers_to_a_file_a_program_a_library_or_a_host() -> None:
    telling = ("FILE", "PATH", "DIR", "PLUGIN", "LIB", "HOST", "ADDR", "URL", "OUT", "PROXY", "CMD")
    named = [name for name in ALLOWED if {*name.split("_")} & {*telling}]
    assert [name for name in named if ALLOWED[name] is not FLAG] == []
    interfaces = {"NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"}
    for name in ALLOWED:
        for value in ("/tmp/x", "../x", "a.so", "10.0.0.1:80", "http://h", "$(id)", "`id`", "a b"):
            assert not is_allowed(name, value) or name in interfaces, (name, value)
    for name in interfaces:  # compared only with the names of interfaces
        assert not is_allowed(name, "../x")
        assert not is_allowed(name, "/tmp/x")


def test_stored_specs_stay_readable() -> None:
    text = JobSpec(env=dict(COUSINS)).model_dump_json()
    assert parse_job_spec(text).env == dict(COUSINS)
