"""A hostile program as its own Unix user: its reads, its signals, its remains."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.other_users import needs_root, packages
from tests.worker.conftest import HERE, Place, environment, make_place, wait_for
from tests.worker.fake_server import FakeServer
from tests.worker.launchers.process_launcher import PROGRAM
from tests.worker.node.conftest import alive
from trainyard.protocol.states import DesiredState
from trainyard.run.atomic import replace_file
from worker.launch import prepare_run
from worker.node.users import RunAs

ATTACK = """
cd "$TRAINYARD_RUN"
for file in supervisor.secret ../../../node.token ../../other/1/spec.json; do
    cat $file && echo "read $file"
done
start=$(cut -d' ' -f22 /proc/{victim}/stat)
rm -f ranks/0.start
echo "{{\\"pid\\": {victim}, \\"start_time\\": $start}}" > ranks/0.start
mkfifo stop
(trap '' TERM; exec env -i setsid sleep 600) &
trap '' TERM
echo planted
while :; do sleep 1; done
"""


@pytest.fixture
def open_place(open_folder: Path) -> Iterator[Place]:
    server = FakeServer()
    made = make_place(open_folder, server)
    made.local = replace(made.local, allow_code=True)
    replace_file(made.node.token, "ty_node_secret\n", mode=0o600)
    yield made
    made.clean()
    server.close()


@needs_root
def test_a_hostile_program_reads_no_token_ends_no_other_and_is_stopped(
    open_place: Place, python: str
) -> None:
    run_as = RunAs.parse("nobody:61930-8")
    run_as.prepare_node(slots=4, data_dir=open_place.node.data_dir, shared=[])
    other, user = run_as.free([]), run_as.free([61_931])
    secret = open_place.node.data_dir / "runs" / "other" / "1" / "spec.json"
    secret.parent.mkdir(parents=True)
    secret.write_text("secret of another job\n")
    other.give(secret, 0o640)
    other.give(secret.parent, 0o1770)
    with subprocess.Popen(
        ["/bin/sleep", "600"], user=other.uid, group=other.uid, extra_groups=[], cwd="/"
    ) as victim:
        try:
            command = ["/bin/sh", "-c", ATTACK.format(victim=victim.pid)]
            program = {"command": command, "launcher": "command", "stop_grace_seconds": 1.0}
            attempt = open_place.attempt(open_place.grant(ranks=1, program=program))
            attempt.seen.claimed = True
            lock = open_place.node.lock(attempt.id, create=True)
            assert lock is not None
            run = prepare_run(open_place.local, attempt.id, attempt.seen.claim, user=user)
            lock.lead_to(run)
            with lock, run.supervisor_log.open("wb") as log:
                attempt.supervisor = subprocess.Popen(
                    [python, str(HERE / "run_detached.py"), str(run.root), str(lock.fd), PROGRAM],
                    pass_fds=[lock.fd],
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    cwd=run.root,
                    env=environment(PYTHONPATH=packages()),
                )
            wait_for(lambda: "planted" in attempt.log(), "attack")
            attempt.seen.desired = DesiredState.STOP
            attempt.exit()
            assert victim.poll() is None, "a process of another job goes on"
        finally:
            victim.kill()
    said = attempt.log()
    assert "ty_node_secret" not in said
    assert attempt.seen.claim.attempt_token not in said
    assert "secret of another job" not in said
    assert "read " not in said
    assert alive(user.uid) == [], "what it left has ended"
