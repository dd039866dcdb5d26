"""The interface to other nodes: derived from the route, and sufficient for the rendezvous."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainyard.spec.job import JobSpec
from worker.launchers.base import Share
from worker.launchers.torchrun import torchrun_command
from worker.node import interface
from worker.node.interface import INTERFACE_VARIABLES, interface_environment, interface_towards
from worker.node.node_store import LaunchRecord, WorkerRun
from worker.node.rank_wrapper import LAUNCHER_PID

HERE = Path(__file__).parent


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_to_this_machine_it_is_the_loopback_interface(host: str) -> None:
    assert interface_towards([host]) == "lo"


def test_the_first_other_machine_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    index = {name: number for number, name in socket.if_nameindex()}
    routes = {"127.0.0.1": index["lo"], "192.0.2.1": 9001, "192.0.2.2": 9002}
    monkeypatch.setattr(interface, "_route_to", lambda _family, address: routes[address])
    names = {index["lo"]: "lo", 9001: "eth1", 9002: "eth2"}
    monkeypatch.setattr(socket, "if_indextoname", names.__getitem__)
    assert interface_towards(["127.0.0.1", "192.0.2.2", "192.0.2.1"]) == "eth2"
    assert interface_towards(["127.0.0.1"]) == "lo"
    assert interface_towards([]) is None


def test_an_unknown_name_and_a_missing_route_leave_it_open(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_name(host: str, *_: object, **__: object) -> object:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", no_name)
    assert interface_towards(["gpu-07"]) is None
    assert "no route to gpu-07 is known" in caplog.text
    assert interface_environment(["gpu-07"], {}) == {}


def test_what_node_or_job_name_prevails() -> None:
    found = interface_environment(["127.0.0.1"], {"NCCL_SOCKET_IFNAME": "ib0"})
    assert found == {"GLOO_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo"}
    assert interface_environment(["127.0.0.1"], dict.fromkeys(INTERFACE_VARIABLES, "x")) == {}
    assert interface_environment([], {}) == {}


# ---- two nodes, each with a network and a name of its own ---------------------------------------

NODES = {"trainyard-a": "10.213.7.1", "trainyard-b": "10.213.7.2"}
MEETS = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
ones = torch.ones(1)
dist.all_reduce(ones)
print("sum", int(ones), os.environ["GLOO_SOCKET_IFNAME"], flush=True)
dist.barrier()
"""


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=30)


@pytest.fixture
def networks() -> Iterator[None]:
    """Two connected network namespaces in which a node's own name is 127.0.1.1."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    first, second = NODES
    folders = [Path("/etc/netns", name) for name in NODES]
    try:
        for name, folder in zip(NODES, folders, strict=True):
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
            # Debian's own line; `ip netns exec` puts the file in the place of /etc/hosts.
            folder.mkdir(parents=True)
            others = "".join(f"{a} {other}\n" for other, a in NODES.items() if other != name)
            (folder / "hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {name}\n{others}")
        ip(*("-n", first, "link", "add", "cable0", "type", "veth"), *("peer", "cable1"))
        ip("-n", first, "link", "set", "cable1", "netns", second)
        for (name, address), cable in zip(NODES.items(), ("cable0", "cable1"), strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", cable)
            ip("-n", name, "link", "set", cable, "up")
        yield
    finally:
        for name, folder in zip(NODES, folders, strict=True):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
            shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.usefixtures("networks")
def test_ranks_of_two_nodes_meet_although_each_name_is_its_own_loopback(tmp_path: Path) -> None:
    script = tmp_path / "meets.py"
    script.write_text(MEETS)
    started = []
    for rank, name in enumerate(NODES):
        run = WorkerRun(tmp_path / name)
        for folder in (Path(run.logs), run.ranks):
            folder.mkdir(parents=True)
        launch = LaunchRecord(
            attempt_id="a",
            node=name,
            node_rank=rank,
            rendezvous="trainyard-a:21000",
            others=tuple(other for other in NODES if other != name),
            report_seconds=1,
            data_dir=str(tmp_path),
            environment={"OMP_NUM_THREADS": "1"},
        )
        run.launch.write_text(launch.model_dump_json())
        Path(run.spec).write_text(JobSpec().model_dump_json())
        # The node's own: names are resolved there as its ranks would.
        words = [sys.executable, str(HERE / "test_interface.py"), str(run.root), str(script)]
        inside = ["ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c"]
        inside += [f'hostname {name} && exec "$@"', "sh", *words]
        with run.launcher_log.open("wb") as log:
            started.append(subprocess.Popen(inside, stdout=log, stderr=log, cwd=HERE.parents[2]))
    try:
        codes = [process.wait(timeout=90) for process in started]
    finally:
        for process in started:
            process.kill()
    logs = [(tmp_path / name / "logs" / f"rank-{r}.log") for r, name in enumerate(NODES)]
    assert codes == [0, 0], [path.read_text() for path in tmp_path.glob("*/logs/*.log")]
    printed = [path.read_text().splitlines()[-1] for path in logs]
    assert printed == ["sum 2 cable0", "sum 2 cable1"]


def main() -> None:
    """Become the torchrun of a run directory, in the environment of its ranks."""
    run = WorkerRun(Path(sys.argv[1]))
    launch = LaunchRecord.model_validate_json(run.launch.read_bytes())
    share = Share(run, launch, sizes=(1, 1))
    environment = dict(share.environment)
    environment[LAUNCHER_PID] = str(os.getpid())  # this process becomes torchrun
    command = torchrun_command(share, [sys.executable, sys.argv[2]])
    os.execvpe(command[0], command, environment)


if __name__ == "__main__":
    main()
