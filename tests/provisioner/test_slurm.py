"""The source of kind `slurm` on commands with jobs as files: the proof of each answer."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from provisioner.base import LoginNeeded, Place, Shape, SourceError, Submission
from provisioner.slurm import STATES, SlurmSource
from provisioner.slurm_options import SlurmOptions
from trainyard.base.ids import make_id
from trainyard.protocol.node_sources.messages import EngineJob

FAKE_SLURM = Path(__file__).with_name("fake_slurm.py")
ID = make_id(milliseconds=1, entropy=bytes(10))
OTHER = make_id(milliseconds=2, entropy=bytes(10))


@dataclass
class Site:
    """A source, and the folder of its fake cluster."""

    folder: Path
    source: SlurmSource

    @property
    def slurm(self) -> Path:
        return self.folder / "slurm"

    def submit(self, request_id: str = ID, **more: Any) -> str:
        secrets = self.folder / "requests" / request_id / "secrets"
        secrets.parent.mkdir(parents=True, exist_ok=True)
        secrets.write_text("secret\n")
        fields: dict[str, Any] = {
            "request_id": request_id,
            "purpose": "nodes",
            "shape": Shape(nodes=2, slots=4, device="cuda"),
            "seconds": 61.0,
            "secrets": secrets,
            "environment": {"TRAINYARD_LABELS": "a=b,c='d $(e)"},
        }
        return self.source.submit(Submission(**(fields | more)))

    def script(self, ref: str = "1") -> str:
        return (self.slurm / f"{ref}.sbatch").read_text()

    def change(self, ref: str = "1", **fields: str) -> None:
        path = self.slurm / f"{ref}.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    def job(self, request_id: str = ID) -> EngineJob:
        (found,) = self.source.status([request_id])
        return found


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    commands = tmp_path / "bin"
    commands.mkdir()
    for name in ("squeue", "sbatch", "scancel", "scontrol", "sacct"):
        write_script(commands / name, f'exec {sys.executable} -S {FAKE_SLURM} {name} "$@"')
    monkeypatch.setenv("PATH", f"{commands}:/usr/bin:/bin")
    monkeypatch.setenv("FAKE_SLURM", str(tmp_path / "slurm"))
    return Site(tmp_path, source_of(tmp_path))


def source_of(place_folder: Path, /, **options: Any) -> SlurmSource:
    place = Place(name="pool", python="/venv/bin/python", folder=place_folder)
    return SlurmSource(place, SlurmOptions(**options))


def write_script(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def test_the_batch_job_has_what_pilots_rely_on_and_no_secret(site: Site) -> None:
    assert site.submit() == "1"
    text = site.script()
    for option in ("--no-requeue", "--export=NONE", "--nodes=2", "--gres=gpu:4", "--time=2"):
        assert f"{option}\n" in text
    step = "\nsrun --export=ALL --no-kill --wait=0 --kill-on-bad-exit=0 --cpu-bind=none"
    assert step in text
    assert "--gpu-bind=none /venv/bin/python -P -m worker pilot" in text
    assert "export TRAINYARD_LABELS='a=b,c='\"'\"'d $(e)'" in text
    assert "export TRAINYARD_NOTICE_SECONDS=30" in text  # KillWait
    assert f"TRAINYARD_JOIN_TOKEN_FILE={site.folder}/requests/{ID}/secrets" in text
    assert "secret\n" not in text.replace("secrets", "")


def test_a_check_starts_the_probe_and_a_setting_wins(site: Site) -> None:
    environment = {"TRAINYARD_NOTICE_SECONDS": "90"}
    shape = Shape(nodes=1, slots=1, device="cpu")
    site.submit(purpose="check", environment=environment, shape=shape, seconds=None)
    text = site.script()
    assert "-P -m worker probe" in text
    assert "NOTICE_SECONDS=90" in text
    assert "--gres" not in text
    assert "--time" not in text


@pytest.mark.parametrize("word", [*STATES, "REVOKED", "SOMETHING_NEW"])
def test_only_terminal_states_but_a_failed_node_prove_the_end(site: Site, word: str) -> None:
    site.submit()
    site.change(State=word, NodeList="n1,n2", Reason="None", StartTime="100", EndTime="200")
    job = site.job()
    assert job.state == STATES.get(word, "unknown")
    assert job.gone == (job.state == "ended" and word != "NODE_FAIL")
    assert (job.starts_at, job.ends_at) == (100, 200)


def test_a_list_of_nodes_that_shrinks_keeps_indices_and_proves_nothing(site: Site) -> None:
    site.submit()
    site.change(State="RUNNING", NodeList="n1,n2")
    whole = site.job().nodes
    assert [node.instance for node in whole] == ["1.0.0", "1.0.1"]
    assert [node.addresses for node in whole] == [("10.1.1.1",), ("10.1.1.2",)]
    for state in ("RUNNING", "COMPLETING"):
        site.change(State=state, NodeList="n2")
        assert [(n.instance, n.host, n.gone) for n in site.job().nodes] == [
            ("1.0.0", "n1", False),
            ("1.0.1", "n2", False),
        ]


def test_a_shrunk_list_that_was_never_whole_names_no_instance(site: Site) -> None:
    site.submit()
    site.change(State="RUNNING", NodeList="n2")
    assert site.job().nodes == ()


def test_a_former_life_is_gone_only_on_nodes_that_answer(site: Site) -> None:
    site.submit()
    site.change(State="RUNNING", NodeList="n1,n2")
    site.job()
    (site.slurm / "n2.down").touch()
    site.change(State="RUNNING", NodeList="n3,n4", RestartCnt="1")
    assert {node.instance: node.gone for node in site.job().nodes} == {
        "1.0.0": True,
        "1.0.1": False,
        "1.1.0": False,
        "1.1.1": False,
    }


def test_many_jobs_cost_the_controller_as_many_questions_as_one(site: Site) -> None:
    log = site.folder / "scontrol.log"
    command = site.folder / "bin" / "scontrol"
    usual = command.read_text().splitlines()[1]
    write_script(command, f'echo "$*" >> {log}; {usual}')
    site.submit()
    first = json.loads((site.slurm / "1.json").read_text())
    for ref in range(1, 5):
        name = f"trainyard-{make_id(milliseconds=ref, entropy=bytes(10))}"
        job = first | {"JobID": str(ref), "Name": name, "State": "RUNNING"}
        job["NodeList"] = f"n{2 * ref},n{2 * ref + 1}"
        (site.slurm / f"{ref}.json").write_text(json.dumps(job))
    site.source.list()
    log.write_text("")
    listed = site.source.list().jobs
    assert log.read_text() == "-o show node n2,n3,n4,n5,n6,n7,n8,n9\n"
    assert [node.addresses for job in listed for node in job.nodes] == [
        (f"10.1.1.{index}",) for index in range(1, 9)
    ]


def test_a_node_that_was_deleted_hides_no_job(site: Site) -> None:
    site.submit()
    site.change(State="RUNNING", NodeList="n1,n2")
    site.job()
    write_script(
        site.folder / "bin" / "scontrol",
        "echo NodeName=n2 NodeAddr=10.1.1.2 State=IDLE; echo Node n1 not found >&2; exit 1",
    )
    (job,) = site.source.list().jobs
    assert [node.addresses for node in job.nodes] == [(), ("10.1.1.2",)]


def test_addresses_of_a_name_are_looked_up_again_after_a_while(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolves_to(address: str) -> None:
        write_script(site.folder / "bin" / "getent", f"echo {address} STREAM $2")

    site.submit()
    site.change(State="RUNNING", NodeList="n1,n2")
    resolves_to("10.5.0.1")
    assert site.job().nodes[0].addresses == ("10.5.0.1",)
    resolves_to("10.5.0.2")
    assert site.job().nodes[0].addresses == ("10.5.0.1",)
    monkeypatch.setattr("provisioner.slurm.RESOLVED_SECONDS", 0.0)
    assert site.job().nodes[0].addresses == ("10.5.0.2",)


def test_a_listing_that_is_too_long_is_an_error(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("provisioner.slurm.MAX_OUTPUT", 10_000)
    site.submit()
    assert [job.ref for job in site.source.list().jobs] == ["1"]
    site.submit(OTHER)
    with pytest.raises(SourceError, match="squeue wrote more than"):
        site.source.list()


def test_what_has_not_ended_hides_an_older_job_of_the_name(site: Site) -> None:
    site.submit()
    site.change(State="CANCELLED")
    second = json.loads((site.slurm / "1.json").read_text())
    for ref in ("2", "3"):
        job = second | {"JobID": ref, "State": "PENDING"}
        (site.slurm / f"{ref}.json").write_text(json.dumps(job))
    assert [job.ref for job in site.source.list().jobs] == ["2"]
    assert json.loads((site.slurm / "3.json").read_text())["State"] == "CANCELLED"


def test_jobs_of_other_sources_and_people_are_left_alone(site: Site) -> None:
    site.submit()
    site.submit(OTHER)
    site.change("1", Comment="trainyard/pool-2/2")
    site.change("2", Name="trainyard-mine")
    assert list(site.source.list().jobs) == []


def test_a_forgotten_job_is_proved_by_the_accounting_alone(site: Site) -> None:
    assert list(site.source.status([ID, OTHER])) == []
    lines = [f"7|trainyard-{ID}|CANCELLED by 0|1|2", f"8|trainyard-{OTHER}|RUNNING|1|Unknown"]
    site.slurm.mkdir(exist_ok=True)
    (site.slurm / "accounting").write_text("\n".join(lines) + "\n")
    (job,) = site.source.status([ID, OTHER])
    assert (job.request_id, job.ref, job.gone, job.ends_at) == (ID, "7", True, 2)


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("sbatch: error: Invalid account or account/partition combination specified", True),
        ("sbatch: error: Job violates accounting/QOS policy", True),
        ("sbatch: unrecognized option '--bad'", True),
        ("sbatch: error: Unable to contact slurm controller (connect failure)", False),
        ("slurm_load_jobs error: Invalid authentication credential", False),
        ("sbatch: error: Socket timed out on send/recv operation", False),
        ("something else", False),
    ],
)
def test_refusals_are_told_from_failures(site: Site, text: str, refused: bool) -> None:
    site.slurm.mkdir()
    (site.slurm / "sbatch.broken").write_text(text)
    with pytest.raises(SourceError) as error:
        site.submit()
    assert (str(error.value), error.value.refused) == (text, refused)


def test_over_ssh_arguments_are_quoted_and_secrets_come_by_stdin(site: Site) -> None:
    log = site.folder / "ssh.log"
    write_script(
        site.folder / "bin" / "ssh",
        f'printf "%s\\n" "$*" >> {log}; for last; do :; done; exec sh -c "$last"',
    )
    shared = site.folder / "shared folder"
    site.source = source_of(site.folder, ssh=("ssh", "login1"), folder=str(shared))
    assert site.submit() == "1"
    secrets = shared / ID / "secrets"
    assert secrets.read_text() == "secret\n"
    assert secrets.stat().st_mode & 0o777 == 0o600
    assert "-o BatchMode=yes" in log.read_text()
    assert "secret\n" not in log.read_text().replace("secrets", "")
    site.change(State="COMPLETED")
    assert [job.gone for job in site.source.list().jobs] == [True]
    assert not secrets.exists()


def test_secrets_are_not_written_into_a_folder_of_another_user(site: Site) -> None:
    if os.geteuid() != 0:
        pytest.skip("a folder of another user needs root")
    write_script(site.folder / "bin" / "ssh", 'for last; do :; done; exec sh -c "$last"')
    shared = site.folder / "shared"
    (shared / ID).mkdir(parents=True)
    os.chown(shared / ID, 12345, 12345)
    source = source_of(site.folder, ssh=("ssh", "login1"), folder=str(shared))
    with pytest.raises(SourceError):
        Site(site.folder, source).submit()
    assert not list((shared / ID).iterdir())


@pytest.mark.parametrize(
    ("text", "needs_login"),
    [("Permission denied (publickey).", True), ("Connection timed out", False)],
)
def test_a_route_without_a_login_is_named(site: Site, text: str, needs_login: bool) -> None:
    write_script(site.folder / "bin" / "ssh", f'echo "{text}" >&2; exit 255')
    source = source_of(site.folder, ssh=("ssh", "-p", "22", "login1"), folder="/shared")
    calls: Sequence[Any] = (source.list, lambda: source.cancel(ID))
    for call in calls:
        with pytest.raises(SourceError) as error:
            call()
        assert isinstance(error.value, LoginNeeded) == needs_login
        if isinstance(error.value, LoginNeeded):
            assert error.value.command == "ssh -MNf -p 22 login1"


def test_what_cannot_prove_the_end_of_ranks_and_old_versions_are_refused(site: Site) -> None:
    commands = site.folder / "bin"
    write_script(commands / "scontrol", "echo 'ProctrackType = proctrack/pgid'")
    with pytest.raises(SourceError, match="proctrack/pgid") as error:
        site.submit()
    assert error.value.refused
    write_script(commands / "squeue", '[ "$1" = --version ] && echo slurm 19.05.1 || true')
    with pytest.raises(SourceError, match=r"Slurm 20\.11 is needed"):
        site.submit()
