"""Pilots on machines: submitted once, proved gone, ended, and unknown without an answer."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from provisioner.base import LoginNeeded, SourceError
from provisioner.ssh.source import SshSource
from tests.provisioner.ssh.conftest import SECONDS, Network, submission, wait_for
from trainyard.protocol.node_sources.messages import EngineJob


def only(source: SshSource, request_id: str) -> EngineJob:
    """Return the only job of a request, from both calls."""
    (job,) = source.status([request_id])
    assert job in source.list().jobs
    return job


def is_gone(source: SshSource, request_id: str) -> bool:
    """Whether the machines prove that a request has ended."""
    (job,) = source.status([request_id])
    return job.gone


def test_a_request_takes_free_machines_and_starts_a_pilot_on_each(
    network: Network, tmp_path: Path
) -> None:
    network.add("gpu-01", "gpu-02", "gpu-03")
    source = network.source("gpu-[01-03]")
    wanted = submission(tmp_path, nodes=2, seconds=3600.5)
    assert source.submit(wanted) == f"trainyard-{wanted.request_id}"

    job = only(source, wanted.request_id)
    assert (job.state, job.gone, job.ref) == ("running", False, f"trainyard-{wanted.request_id}")
    assert [(node.index, node.host) for node in job.nodes] == [(0, "gpu-01"), (1, "gpu-02")]
    assert job.starts_at is not None
    assert job.ends_at is not None
    assert 3601 <= job.ends_at - job.starts_at < 3601 + SECONDS  # the last one of both
    for node in job.nodes:
        folder = network.request(node.host, wanted.request_id)
        wait_for((folder / "ready").exists, "pilot")
        seen = (folder / "seen").read_text().splitlines()
        assert f"TRAINYARD_PILOT_INSTANCE={node.instance}" in seen
        assert f"TRAINYARD_PILOT_INDEX={node.index}" in seen
        starts = int((folder / "starts").read_text())
        assert f"TRAINYARD_PILOT_ENDS_AT={starts + 3601}" in seen
        assert f"TRAINYARD_JOIN_TOKEN_FILE={folder}/secrets" in seen
        assert f"TMPDIR={network.folder}/{node.host}/yard/data" in seen
        assert "TRAINYARD_LABELS=a='b c',d=e" in seen
        boot, pid, _ = node.instance.split(".")
        assert boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        assert b"worker\0pilot" in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_machine_holds_the_secret_of_its_own_pilot_alone(
    network: Network, tmp_path: Path
) -> None:
    network.add("a", "b")
    source = network.source("a", "b")
    wanted = submission(tmp_path, nodes=2)
    source.submit(wanted)
    secret = f"secret-1-of-{wanted.request_id}"
    folder = network.request("b", wanted.request_id)
    assert (folder / "secrets").read_text() == f"-\n{secret}\n"
    assert (folder / "secrets").stat().st_mode & 0o777 == 0o600
    assert (
        secret.encode() not in Path(f"/proc/{network.pid('b', folder.name)}/environ").read_bytes()
    )
    holding = [
        path
        for path in network.folder.rglob("*")
        if path.is_file() and b"secret-" in path.read_bytes() and path.name != "secrets"
    ]
    assert holding == []


def test_a_repeated_submission_finds_what_runs(network: Network, tmp_path: Path) -> None:
    network.add("a", "b")
    source = network.source("a", "b")
    wanted = submission(tmp_path)
    source.submit(wanted)
    before = only(source, wanted.request_id)
    source.submit(wanted)
    shutil.rmtree(network.folder / "lab.state")  # the machines know it without the provisioner
    (network.folder / "lab.state").mkdir()
    source.submit(wanted)
    assert only(source, wanted.request_id) == before
    assert not network.request("b", wanted.request_id).exists()


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("pilot", "300 301"),
        ("pilot", "0"),
        ("starts", "nan"),
        ("ends", "1e400"),
        ("instance", "x\x1b[2J"),
        ("instance", "x" * 300),
    ],
)
def test_a_machine_that_answers_garbage_hides_no_other(
    network: Network, tmp_path: Path, file: str, content: str
) -> None:
    network.add("a", "b")
    source = network.source("a", "b")
    first, second = submission(tmp_path), submission(tmp_path)
    source.submit(first)
    source.submit(second)
    wait_for((network.request("a", first.request_id) / "ready").exists, "pilot")
    (network.request("a", first.request_id) / file).write_text(f"{content}\n")
    jobs = {job.request_id: job for job in source.list().jobs}
    assert jobs[first.request_id].state == "unknown"
    assert "a: the answer to look cannot be read" in jobs[first.request_id].reason
    assert jobs[second.request_id].state == "running"


@pytest.mark.parametrize("call", ["look", "reserve", "start"])
def test_a_submission_whose_answer_is_lost_is_found_again(
    network: Network, tmp_path: Path, call: str
) -> None:
    network.add("a", "b", "c")
    source = network.source("a", "b", "c")
    wanted = submission(tmp_path, nodes=2)
    (network.folder / "a.lost").write_text(call)
    if call == "look":
        source.submit(wanted)  # another machine is free
        assert {node.host for node in only(source, wanted.request_id).nodes} == {"b", "c"}
        return
    with pytest.raises(SourceError, match=r"a is not reached: .*closed by remote host"):
        source.submit(wanted)
    source.submit(wanted)
    job = only(source, wanted.request_id)
    assert [(node.index, node.host) for node in job.nodes] == [(0, "a"), (1, "b")]
    assert not network.request("c", wanted.request_id).exists()


def test_a_machine_that_may_have_a_pilot_keeps_it(network: Network, tmp_path: Path) -> None:
    network.add("a", "b")
    source = network.source("a", "b")
    wanted = submission(tmp_path)
    (network.folder / "a.lost").write_text("start")
    with pytest.raises(SourceError):
        source.submit(wanted)
    (network.folder / "a.error").write_text("ssh: connect to host a port 22: No route to host\n")
    with pytest.raises(SourceError, match="a is not reached"):
        source.submit(wanted)  # and starts no second pilot of this index on b
    (job,) = source.list().jobs
    assert (job.state, job.gone, job.nodes) == ("unknown", False, ())
    (network.folder / "a.error").unlink()
    assert only(source, wanted.request_id).state == "running"
    assert not network.request("b", wanted.request_id).exists()


def test_one_pilot_a_machine_whatever_its_source(network: Network, tmp_path: Path) -> None:
    network.add("a", "b")
    lab, other = network.source("a", "b"), network.source("a", "b", name="other")
    first = submission(tmp_path)
    lab.submit(first)
    two = submission(tmp_path, nodes=2)
    with pytest.raises(SourceError, match="1 machines are free, 2 are needed") as error:
        other.submit(two)
    assert not error.value.refused
    assert other.list().jobs == []
    with pytest.raises(SourceError, match="nodes=3: the source has 2 machines") as error:
        lab.submit(submission(tmp_path, nodes=3))
    assert error.value.refused


def test_a_machine_that_is_taken_meanwhile_keeps_no_other(
    network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network.add("a", "b", "c")
    source, other = network.source("a", "b", "c"), network.source("b", name="other")
    wanted, theirs = submission(tmp_path, nodes=2), submission(tmp_path)
    choose = SshSource._choose

    def choose_late(self: SshSource, *words: object) -> dict[int, str]:
        chosen = choose(self, *words)  # type: ignore[arg-type]
        monkeypatch.undo()
        monkeypatch.setenv("REAL_PYTHON", sys.executable)
        other.submit(theirs)
        return chosen

    monkeypatch.setattr(SshSource, "_choose", choose_late)
    with pytest.raises(SourceError, match=f"b is taken: busy {theirs.request_id}"):
        source.submit(wanted)
    assert not network.request("a", wanted.request_id).exists()
    source.submit(wanted)
    job = only(source, wanted.request_id)
    assert [(node.index, node.host) for node in job.nodes] == [(0, "a"), (1, "c")]


def test_a_pilot_is_gone_once_no_process_of_it_is_left(network: Network, tmp_path: Path) -> None:
    network.add("a")
    source = network.source("a")
    wanted = submission(tmp_path)
    source.submit(wanted)
    os.kill(network.pid("a", wanted.request_id), signal.SIGKILL)
    job = only(source, wanted.request_id)  # its child processes live
    assert (job.state, job.gone, job.nodes[0].gone) == ("running", False, False)
    (network.request("a", wanted.request_id) / "leave").touch()
    wait_for(lambda: is_gone(source, wanted.request_id), "end")
    job = only(source, wanted.request_id)
    assert (job.state, job.nodes[0].gone) == ("ended", True)
    assert job.reason == "a: pilot begins: -m worker pilot"
    assert not (network.request("a", wanted.request_id) / "secrets").exists()
    source.submit(submission(tmp_path))  # the machine is free


def test_after_another_boot_the_pilot_is_gone(network: Network, tmp_path: Path) -> None:
    network.add("a")
    source = network.source("a")
    wanted = submission(tmp_path)
    source.submit(wanted)
    instance = network.request("a", wanted.request_id) / "instance"
    former = "0" * 8 + instance.read_text()[8:]
    instance.write_text(former)
    job = only(source, wanted.request_id)
    assert (job.state, job.gone) == ("ended", True)
    assert job.nodes[0].instance == former.strip()


def test_another_process_with_the_pid_is_not_the_pilot(network: Network, tmp_path: Path) -> None:
    network.add("a")
    source = network.source("a")
    wanted = submission(tmp_path)
    source.submit(wanted)
    network.kill_all()
    instance = network.request("a", wanted.request_id) / "instance"
    boot, _, _ = instance.read_text().split(".")
    instance.write_text(f"{boot}.{os.getpid()}.1\n")
    wait_for(lambda: is_gone(source, wanted.request_id), "end")
    source.cancel(wanted.request_id)  # and signals nothing


def test_a_machine_without_an_answer_is_unknown_and_hides_no_other(
    network: Network, tmp_path: Path
) -> None:
    network.add("a", "b", "c")
    source = network.source("a", "b", "c", call_seconds=1)
    both, single = submission(tmp_path, nodes=2), submission(tmp_path)
    source.submit(both)
    source.submit(single)
    (network.folder / "b.slow").touch()
    (network.folder / "c").rename(network.folder / "away")
    (first, second) = sorted(source.list().jobs, key=lambda job: job.request_id)
    assert (first.state, [node.host for node in first.nodes]) == ("running", ["a"])
    assert first.reason == "b: b: no answer within 1 s"
    assert (second.state, second.gone, second.nodes) == ("unknown", False, ())
    assert "No route to host" in second.reason
    os.kill(network.pid("a", both.request_id), signal.SIGKILL)
    (network.request("a", both.request_id) / "leave").touch()

    def of_first() -> EngineJob:
        return next(job for job in source.list().jobs if job.request_id == both.request_id)

    wait_for(lambda: of_first().nodes[0].gone, "end of the pilot on a")
    assert (of_first().state, of_first().gone) == ("unknown", False)
    (network.folder / "a.slow").touch()
    with pytest.raises(SourceError):
        source.list()
    (network.folder / "away").rename(network.folder / "c")


def test_a_cancelled_pilot_leaves_by_itself(network: Network, tmp_path: Path) -> None:
    network.add("a")
    source = network.source("a")
    wanted = submission(tmp_path)
    source.submit(wanted)
    source.cancel(wanted.request_id)
    wait_for(lambda: is_gone(source, wanted.request_id), "end")
    assert only(source, wanted.request_id).reason == "a: pilot leaves"
    assert source.explain(wanted.request_id).splitlines()[-1] == "pilot leaves"
    source.submit(wanted)  # starts none again
    assert only(source, wanted.request_id).gone
    source.cancel(wanted.request_id)
    assert only(source, wanted.request_id).gone  # a report of it may have been lost
    hours_ago = time.time() - 2 * 3600
    os.utime(network.request("a", wanted.request_id) / "gone", (hours_ago, hours_ago))
    source.cancel(wanted.request_id)
    assert source.list().jobs == []
    assert "pilot leaves" in source.explain(wanted.request_id)


def test_a_pilot_that_does_not_leave_is_killed_after_the_grace(
    network: Network, tmp_path: Path
) -> None:
    network.add("a")
    (network.folder / "a" / "stubborn").touch()
    source = network.source("a", grace_seconds=3600)
    wanted = submission(tmp_path)
    source.submit(wanted)
    wait_for((network.request("a", wanted.request_id) / "ready").exists, "pilot")
    source.cancel(wanted.request_id)
    assert only(source, wanted.request_id).state == "completing"
    network.source("a", grace_seconds=0).list()
    wait_for(lambda: is_gone(source, wanted.request_id), "end")


def test_a_pilot_whose_time_is_over_is_ended(network: Network, tmp_path: Path) -> None:
    network.add("a")
    source = network.source("a")
    wanted = submission(tmp_path, seconds=1)
    source.submit(wanted)
    wait_for(lambda: is_gone(source, wanted.request_id), "end")
    assert only(source, wanted.request_id).reason == "a: pilot leaves"


def test_a_cancelled_reservation_is_removed(network: Network, tmp_path: Path) -> None:
    network.add("a")
    source = network.source("a")
    wanted = submission(tmp_path)
    source.submit(wanted)
    network.kill_all()
    folder = network.request("a", wanted.request_id)
    (folder / "instance").unlink()  # like a submission killed before its pilot started
    assert only(source, wanted.request_id).state == "pending"
    source.cancel(wanted.request_id)
    assert source.list().jobs == []
    assert not folder.exists()


def test_an_expired_login_names_the_command_that_renews_it(
    network: Network, tmp_path: Path
) -> None:
    network.add("a", "b")
    source = network.source("a", "b")
    wanted = submission(tmp_path, nodes=2)
    source.submit(wanted)
    (network.folder / "a.settings").write_text("hostname 10.0.0.1\ncontrolpath /run/m y\n")
    (network.folder / "a.error").write_text("me@10.0.0.1: Permission denied (publickey).\n")
    listed = source.list()
    assert listed.jobs[0].state == "running"  # b answers
    ssh = f"{Path(__file__).with_name('fake_ssh.sh')} -F {network.folder}"
    assert listed.login is not None
    assert listed.login.command == f"{ssh} -MNf -S '/run/m y' a"
    with pytest.raises(LoginNeeded) as error:
        source.cancel(wanted.request_id)
    assert error.value.command == listed.login.command
    jump = "hostname 10.0.0.1\nproxyjump me@jump\ncontrolpath none\n"
    (network.folder / "a.settings").write_text(jump)
    (network.folder / "me@jump.settings").write_text("hostname jump.lab\ncontrolpath /run/jump\n")
    (network.folder / "a.error").write_text("me@jump.lab: Permission denied (publickey).\n")
    with pytest.raises(LoginNeeded) as error:
        source.cancel(wanted.request_id)
    assert error.value.command == f"{ssh} -MNf -S /run/jump me@jump"
    with pytest.raises(LoginNeeded):
        source.submit(submission(tmp_path, nodes=2))  # b alone is not enough


def test_a_machine_without_the_right_python_is_refused(network: Network, tmp_path: Path) -> None:
    network.add("a", "b")
    old = network.folder / "a" / "bin" / "old"
    old.write_text("#!/bin/sh\necho 3.9\n")
    old.chmod(0o755)
    source = network.source("a", "b", python="old")
    with pytest.raises(SourceError) as error:
        source.submit(submission(tmp_path))
    assert error.value.refused
    assert f"a: python='old' needs Python 3.11 or newer; {old} is 3.9" in str(error.value)
    assert "b: python='old' needs Python 3.11 or newer; none is there" in str(error.value)
    good = network.folder / "b" / "bin" / "old"
    shutil.copy(network.python, good)
    wanted = submission(tmp_path)
    source.submit(wanted)
    assert only(source, wanted.request_id).nodes[0].host == "b"


def test_a_folder_that_machines_share_is_refused(network: Network, tmp_path: Path) -> None:
    network.add("a")
    stat = network.folder / "a" / "bin" / "stat"
    stat.write_text("#!/bin/sh\necho nfs\n")
    stat.chmod(0o755)
    with pytest.raises(SourceError, match=r"a: base=.*/a/yard lies on nfs; name a local folder"):
        network.source("a").submit(submission(tmp_path))
