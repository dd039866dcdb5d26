"""The systemd units: legal, each version from a folder of its own, and as few rights as needed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy.units import ROOT, UNITS, read_unit, start_command
from worker.node.users import RunAs

COMMANDS = {
    ("trainyard-provisioner", "ExecStart"): "provisioner --config /etc/trainyard/sources.toml",
    ("trainyard-scheduler", "ExecStart"): "server scheduler",
    ("trainyard-server", "ExecStartPre"): "server migrate",
    ("trainyard-server", "ExecStart"): "server api",
    ("trainyard-worker", "ExecStart"): "worker",
}
SERVERS = ("trainyard-scheduler", "trainyard-server")


def service(name: str) -> dict[str, str]:
    return dict(read_unit(ROOT / "deploy" / f"{name}.service")["Service"])


def test_every_unit_is_here() -> None:
    assert {path.stem for path in UNITS} == {name for name, _ in COMMANDS}


@pytest.mark.parametrize(("name", "key"), COMMANDS)
def test_a_process_stays_with_the_version_that_the_link_named_at_its_start(
    name: str, key: str, tmp_path: Path
) -> None:
    shell, option, script = start_command(ROOT / "deploy" / f"{name}.service", key)
    assert (shell, option) == ("/bin/sh", "-c")
    python = tmp_path / "2.0.0" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "$0" "$@"\n')
    python.chmod(0o755)
    (tmp_path / "current").symlink_to("2.0.0")
    script = script.replace("/usr/local/lib/trainyard/current", str(tmp_path / "current"))
    ran = subprocess.run((shell, option, script), capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == f"{python} -m {COMMANDS[name, key]}"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    def verify(folder: Path) -> str:
        names = [str(path) for path in sorted(folder.glob("*.service"))]
        words = ("systemd-analyze", "verify", "--man=no", *names)
        variables = os.environ | {"SYSTEMD_UNIT_PATH": f"{folder}:"}
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=variables)
        ours = [line for line in done.stderr.splitlines() if str(folder) in line]
        return "\n".join(ours)

    for path in UNITS:
        shutil.copy(path, tmp_path)
    assert verify(tmp_path) == ""
    unit = tmp_path / "trainyard-worker.service"
    unit.write_text(unit.read_text().replace("KillMode=process", "KillMode=proces"))
    assert "Failed to parse kill mode" in verify(tmp_path)


def test_the_unit_of_the_worker_leaves_supervisors_alone() -> None:
    worker = service("trainyard-worker")
    assert worker["KillMode"] == "process"
    assert worker["Restart"] == "always"


def test_the_unit_of_the_provisioner_reads_the_sources_again() -> None:
    assert service("trainyard-provisioner")["ExecReload"] == "/bin/kill -HUP $MAINPID"


def test_a_database_that_comes_up_later_delays_the_server_and_ends_nothing() -> None:
    """No unit depends on another one's success, which systemd would not repeat."""
    for path in UNITS:
        unit = read_unit(path)
        assert unit["Service"]["Restart"] == "always", path.stem
        assert unit["Unit"]["StartLimitIntervalSec"] == "0", path.stem
        assert not {"Requires", "BindsTo", "Requisite"} & unit["Unit"].keys(), path.stem
        assert unit["Unit"]["Wants"] == "network-online.target"
    server = service("trainyard-server")
    assert server["TimeoutStartSec"] == "infinity", "a backup before the migration takes minutes"


@pytest.mark.parametrize("name", SERVERS)
def test_the_server_writes_its_state_folder_alone(name: str) -> None:
    unit = service(name)
    assert (unit["User"], unit["ProtectSystem"]) == ("trainyard", "strict")
    assert (unit["StateDirectory"], unit["StateDirectoryMode"]) == ("trainyard", "0700")
    assert unit["NoNewPrivileges"] == "true"
    assert "ReadWritePaths" not in unit


def test_the_unit_of_the_worker_keeps_four_capabilities() -> None:
    unit = service("trainyard-worker")
    assert unit["User"] == "trainyard"
    four = "CAP_CHOWN CAP_KILL CAP_SETGID CAP_SETUID"
    assert unit["AmbientCapabilities"] == unit["CapabilityBoundingSet"] == four
    text = (ROOT / "deploy" / "trainyard-worker.service").read_text()
    given = dict(re.findall(r"^Environment=(\w+)=(\S+)$", text, re.MULTILINE))
    assert RunAs.parse(given["TRAINYARD_RUN_AS"]).count > 1024, "slots of a node"
    assert given["TRAINYARD_DATA_DIR"] == f"/var/lib/{unit['StateDirectory']}"
    assert unit["StateDirectoryMode"] == "0711", "users of attempts pass through it"
