"""A real sshd behind a jump host: expiring logins, broken connections, rebooting machines.

`make test-ssh` installs openssh-server and runs them.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provisioner.base import LoginNeeded, Place, SourceError
from provisioner.ssh.bundle import make_bundle
from provisioner.ssh.hosts import SshOptions
from provisioner.ssh.source import SshSource
from tests.provisioner.ssh.conftest import submission, wait_for
from tests.provisioner.ssh.machines import Lab, absence, lab_in, stand_in
from tests.provisioner.ssh.test_bundle import make_wheels
from trainyard.protocol.node_sources.messages import EngineJob

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(absence()), reason=absence())]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A jump host and two machines."""
    yield from lab_in(tmp_path_factory.mktemp("lab"))


def source_of(lab: Lab, folder: Path, *, key: str = "key", **options: Any) -> SshSource:
    """Return a source of both machines."""
    python = str(options.pop("python", "") or stand_in(folder))
    values = {"hosts": ["gpu-[1-2]"], "ssh": lab.ssh(key=key), **options}
    place = Place(name="lab", python=python, folder=folder)
    return SshSource(place, SshOptions.model_validate(values))


def job_of(source: SshSource, request_id: str) -> EngineJob:
    """Return the job of a request."""
    (job,) = source.status([request_id])
    return job


def end(source: SshSource, request_id: str) -> None:
    """Cancel a request, and wait for the proof of its end."""
    source.cancel(request_id)
    wait_for(lambda: job_of(source, request_id).gone, "end")


def test_pilots_start_and_end_behind_a_jump_host(lab: Lab, tmp_path: Path) -> None:
    source = source_of(lab, tmp_path)
    wanted = submission(tmp_path, nodes=2)
    source.submit(wanted)
    job = job_of(source, wanted.request_id)
    assert job.state == "running"
    assert [(node.index, node.host) for node in job.nodes] == [(0, "gpu-1"), (1, "gpu-2")]
    assert [node.addresses for node in job.nodes] == [("10.90.1.2",), ("10.90.2.2",)]
    assert job in source.list().jobs
    source.submit(wanted)
    assert job_of(source, wanted.request_id) == job
    end(source, wanted.request_id)
    assert "pilot leaves" in source.explain(wanted.request_id)


def test_a_submission_whose_connection_breaks_is_found_again(lab: Lab, tmp_path: Path) -> None:
    source = source_of(lab, tmp_path)
    machine = lab.gpus[0]
    reached = machine.folder / "disk" / "reached"
    wait = "touch /var/tmp/reached; while [ -e /var/tmp/reached ]; do sleep 0.1; done"
    machine.install("setsid", f'#!/bin/sh\n{wait}\nexec /usr/bin/setsid "$@"\n')
    wanted = submission(tmp_path)
    errors: list[SourceError] = []

    def submit() -> None:
        try:
            source.submit(wanted)
        except SourceError as error:
            errors.append(error)

    thread = threading.Thread(target=submit)
    thread.start()
    wait_for(reached.exists, "start of the pilot")
    assert machine.kill("sshd: root")
    thread.join()
    assert "gpu-1 is not reached" in str(errors[0])
    (machine.folder / "bin" / "setsid").unlink()
    assert job_of(source, wanted.request_id).state == "pending"
    reached.unlink()
    source.submit(wanted)
    job = job_of(source, wanted.request_id)
    assert [(node.index, node.host) for node in job.nodes] == [(0, "gpu-1")]
    assert len(machine.kill("-m worker pilot")) <= 2  # one pilot, and the process that it starts
    wait_for(lambda: job_of(source, wanted.request_id).gone, "end")


def test_an_expired_login_is_renewed_by_the_command_that_is_named(lab: Lab, tmp_path: Path) -> None:
    source = source_of(lab, tmp_path, key="locked")
    with pytest.raises(LoginNeeded, match="Permission denied") as error:
        source.list()
    lab.log_in(error.value.command)
    assert error.value.command.endswith(" gpu-1")
    wanted = submission(tmp_path)
    source.submit(wanted)
    assert job_of(source, wanted.request_id).state == "running"
    lab.gpus[0].kill("sshd: root")  # the operator's connection is gone
    with pytest.raises(LoginNeeded) as again:
        source.cancel(wanted.request_id)
    assert again.value.command == error.value.command
    with_key = source_of(lab, tmp_path)
    assert job_of(with_key, wanted.request_id).state == "running"  # started processes continue
    lab.log_in(again.value.command)
    end(source, wanted.request_id)


def test_a_machine_that_is_off_is_unknown_and_after_its_boot_the_pilot_is_gone(
    lab: Lab, tmp_path: Path
) -> None:
    source = source_of(lab, tmp_path, connect_seconds=2, call_seconds=20)
    wanted = submission(tmp_path)
    source.submit(wanted)
    before = job_of(source, wanted.request_id).nodes[0].instance
    lab.gpus[0].off()
    (job,) = [each for each in source.list().jobs if each.request_id == wanted.request_id]
    assert (job.state, job.gone) == ("unknown", False)
    assert "gpu-1" in job.reason
    with pytest.raises(SourceError):
        source.status([wanted.request_id])
    lab.boot(1)
    job = job_of(source, wanted.request_id)
    assert (job.state, job.gone) == ("ended", True)
    assert [(node.instance, node.gone) for node in job.nodes] == [(before, True)]
    following = submission(tmp_path)
    source.submit(following)
    now = job_of(source, following.request_id).nodes[0].instance
    assert now.split(".")[0] != before.split(".")[0]
    end(source, following.request_id)


def test_a_killed_pilot_is_gone_with_its_last_process(lab: Lab, tmp_path: Path) -> None:
    source = source_of(lab, tmp_path)
    wanted = submission(tmp_path)
    source.submit(wanted)
    wait_for((lab.gpus[0].requests() / wanted.request_id / "ready").exists, "pilot")
    assert lab.gpus[0].kill("-m worker pilot")
    wait_for(lambda: job_of(source, wanted.request_id).gone, "end")


def test_a_bundle_is_installed_without_a_network_where_the_python_is_right(
    lab: Lab, tmp_path: Path
) -> None:
    lab.gpus[0].install("python3", "#!/bin/sh\necho 3.9\n")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    lab.gpus[0].install(version, "#!/bin/sh\nexit 127\n")
    bundle = make_bundle(
        tmp_path / "bundle.tar",
        wheels=make_wheels(tmp_path / "wheels", "1.0"),
        requirements=["trainyard-programs", "pip"],
    )
    source = source_of(lab, tmp_path, python="python3", bundle=str(bundle.path))
    both = submission(tmp_path, nodes=2)
    with pytest.raises(SourceError, match=r"gpu-1: python='python3' needs .* is 3\.9") as error:
        source.submit(both)
    assert error.value.refused
    wanted = submission(tmp_path)
    source.submit(wanted)
    assert [node.host for node in job_of(source, wanted.request_id).nodes] == ["gpu-2"]
    log = lab.gpus[1].requests() / wanted.request_id / "log"
    wait_for(lambda: f"bundles/{bundle.digest}/venv" in log.read_text(), "pilot")
    end(source, wanted.request_id)


def test_a_machine_with_another_host_key_is_not_used(lab: Lab, tmp_path: Path) -> None:
    known = lab.folder / "known_hosts"
    former = known.read_text()
    lines = former.splitlines()
    key = lines[2].partition(" ")[2]
    known.write_text("\n".join((lines[0], f"10.90.1.2 {key}", f"10.90.2.2 {key}", "")))
    try:
        source = source_of(lab, tmp_path)
        wanted = submission(tmp_path, nodes=2)
        with pytest.raises(SourceError, match="Host key verification failed") as error:
            source.submit(wanted)
        assert not isinstance(error.value, LoginNeeded)
        assert not error.value.refused
    finally:
        known.write_text(former)
