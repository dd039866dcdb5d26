"""Every launcher keeps the contract of docs/worker-processes.md, "Launchers"."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.worker.conftest import SECONDS, Place, environment, make_place
from tests.worker.fake_server import FakeServer
from tests.worker.launchers.contract import SCENARIOS
from tests.worker.launchers.process_launcher import LAUNCHERS, TORCHRUN
from tests.worker.outer_launch import OUTER
from trainyard.run.records import RankExit
from worker.launch import prepare_run
from worker.launchers.base import Observation

SCRIPT = Path(__file__).with_name("contract.py")


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_launcher_keeps_the_contract(place: Place, launcher: str, scenario: str) -> None:
    attempt = place.attempt(place.grant())
    run = prepare_run(place.local, attempt.id, attempt.seen.claim)
    done = subprocess.run(
        [sys.executable, str(SCRIPT), scenario, launcher, str(run.root)],
        env=environment() | OUTER,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert attempt.processes == []


def test_ranks_of_uneven_shares_follow_the_node_ranks(
    place: Place, server: FakeServer, tmp_path: Path
) -> None:
    """Two nodes of one attempt, with 2 ranks and 1, rendezvous under torchrun."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        rendezvous = f"127.0.0.1:{probe.getsockname()[1]}"
    (tmp_path / "second").mkdir()
    second = make_place(tmp_path / "second", server, name="node-2")
    attempt_id = place.grant(sizes=(2, 1), rendezvous=rendezvous)
    claim = server.attempts[attempt_id].claim
    # With this variable torchrun's nodes would number their ranks independently.
    same = environment(TORCH_ELASTIC_WORKER_IDENTICAL="1")
    runs, starts = [], []
    for node, local in enumerate((place.local, second.local)):
        run = prepare_run(local, attempt_id, claim.model_copy(update={"node_rank": node}))
        command = [sys.executable, str(SCRIPT), "succeed", TORCHRUN, str(run.root)]
        runs.append(run)
        starts.append(subprocess.Popen(command, env=same, stderr=subprocess.PIPE, text=True))
    for start in starts:
        _, errors = start.communicate(timeout=SECONDS)
        assert start.returncode == 0, errors
    names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
    seen = []
    for rank, run in enumerate((runs[0], runs[0], runs[1])):
        lines = Path(run.log(rank)).read_text().splitlines()
        variables = json.loads(next(line for line in lines if line.startswith("{")))
        seen.append([int(variables[name]) for name in names])
    assert seen == [[0, 0, 2, 0, 2], [1, 1, 2, 0, 2], [2, 0, 1, 1, 2]]


def exit_of(rank: int, code: int | None) -> RankExit:
    return RankExit(rank=rank, pid=rank + 100, exit_code=code, signal=None, time=float(rank))


@pytest.mark.parametrize(
    ("pids", "pidfds", "exits", "ended", "settled"),
    [
        ({}, {}, (), False, False),  # nothing has started
        ({}, {}, (), True, True),  # nothing ever starts
        ({0: 100}, {0: 5}, (), False, False),  # rank 1 is about to start
        ({0: 100}, {0: 5}, (), True, True),  # rank 1 never starts
        ({0: 100, 1: 101}, {0: 5, 1: 6}, (), False, True),  # both run
        ({0: 100, 1: 101}, {0: 5}, (), False, False),  # the exit of rank 1 is not recorded yet
        ({0: 100, 1: 101}, {0: 5}, (exit_of(1, 0),), False, True),
        ({0: 100, 1: 101}, {}, (exit_of(1, 0),), True, False),
        ({0: 100, 1: 101}, {}, (exit_of(0, 0), exit_of(1, 0)), True, True),
    ],
)
def test_an_observation_is_settled_when_no_change_is_due(
    pids: dict[int, int],
    pidfds: dict[int, int],
    exits: tuple[RankExit, ...],
    ended: bool,
    settled: bool,
) -> None:
    assert Observation(2, pids, pidfds, exits, ended).settled is settled


def test_an_exit_that_was_not_seen_is_a_failure() -> None:
    pids = {0: 100, 1: 101}
    assert not Observation(2, pids, {}, (exit_of(0, 0), exit_of(1, 0))).failed
    assert Observation(2, pids, {}, (exit_of(0, 0), exit_of(1, None))).failed
    assert Observation(2, pids, {}, (exit_of(0, 0), exit_of(1, 7))).failed
