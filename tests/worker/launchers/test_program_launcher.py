"""Programs of users under the supervisor: real torchrun, real signals, scripts without our code."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.worker.conftest import Attempt, Place, make_place, wait_for
from tests.worker.fake_server import FakeServer
from tests.worker.launchers.process_launcher import PROGRAM
from trainyard.protocol.attempt import ResumePoint
from trainyard.protocol.states import DesiredState
from trainyard.run.directory import Phase
from worker.launchers.program_launcher import Interpreter, command_of, folder_at

SAY = """
import json, os, sys
print(json.dumps({"argv": sys.argv[1:], "cwd": os.getcwd(), "env": dict(os.environ)}), flush=True)
"""
MEAN = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.tensor(float(dist.get_rank()))
dist.all_reduce(value)
print("sum", value.item(), "of", dist.get_world_size(), flush=True)
dist.destroy_process_group()
"""
SLEEP = "import time\nprint('runs', flush=True)\ntime.sleep(600)\n"
LEAVE = """
import os, signal, sys, time
def leave(*_):
    time.sleep(0.5 if os.environ.get("RANK", "0") == "0" else 0)
    print("left", flush=True)
    sys.exit(3)
signal.signal(signal.SIGTERM, leave)
print("runs", flush=True)
while True:
    time.sleep(0.05)
"""
IGNORE = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("runs", flush=True)
time.sleep(600)
"""
FAIL = """
import os, sys, time
if os.environ.get("RANK", "0") == "1":
    sys.exit("the data are missing")
time.sleep(600)
"""


POINT = ResumePoint(checkpoint_id="c", path="jobs/7", step=7, metadata_digest="d")
GRANTED = {"nodes", "node_rank", "rendezvous", "attempt_id", "spec", "of_attempt"}
"""Arguments of `start` that are not fields of the program."""


@pytest.fixture
def place(place: Place) -> Place:
    """A node that runs code of jobs, with a folder for it."""
    place.local = replace(place.local, allow_code=True)
    Path(place.local.roots["data"], "mine", "inner").mkdir(parents=True)
    return place


def start(place: Place, script: str = SAY, *, ranks: int = 2, **given: Any) -> Attempt:
    """Start a job that runs `train.py` of the folder `data:mine`."""
    path = Path(place.local.roots["data"], "mine", "train.py")
    path.write_text(textwrap.dedent(script))
    granted = {name: given.pop(name) for name in GRANTED & given.keys()}
    if "guard" in given:
        granted["spec"] = {"guard": given.pop("guard")}
    code = {"folder": "data:mine"}
    program = {"command": ["train.py"], "launcher": "command", "code": code, **given}
    return place.start(launcher=PROGRAM, ranks=ranks, program=program, **granted)


def said(attempt: Attempt, rank: int = 0) -> dict[str, Any]:
    """Return a rank's description of itself."""
    found: dict[str, Any] = json.loads(attempt.log(rank).splitlines()[0])
    return found


def test_ranks_of_torchrun_meet_and_succeed_by_their_exit_codes(place: Place) -> None:
    attempt = start(place, MEAN, launcher="torchrun")
    record = attempt.exit()
    assert (record.outcome, record.failure) == ("succeeded", None)
    assert [end.exit_code for end in record.ranks] == [0, 0]
    assert "sum 1.0 of 2" in attempt.log(0)
    assert "sum 1.0 of 2" in attempt.log(1)


def test_a_rank_gets_words_folder_and_run_directory(place: Place) -> None:
    arguments = {"lr": 0.001, "bf16": True, "debug": False, "sizes": [1, 2], "name": "-x"}
    attempt = start(place, launcher="torchrun", command=["train.py", "first"], arguments=arguments)
    assert attempt.exit().outcome == "succeeded"
    found = said(attempt, 1)
    words = ["first", "--lr", "0.001", "--bf16", "--sizes", "1", "2", "--name=-x"]
    assert found["argv"] == words
    assert found["cwd"] == place.local.roots["data"] + "/mine"
    environment = found["env"]
    assert environment["TRAINYARD_RUN"] == str(attempt.run.root)
    assert (environment["RANK"], environment["LOCAL_RANK"]) == ("1", "1")
    assert environment["WORLD_SIZE"] == "2"
    assert environment["PATH"].split(":")[0] == str(Path(sys.executable).parent)
    assert attempt.seen.claim.attempt_token not in json.dumps(found)


def test_event_files_are_reported_as_metrics(place: Place) -> None:
    recorded = Path(__file__).parents[2] / "library/client/imports/recorded/tensorboard"
    script = f"""
        import os, shutil
        shutil.copytree({str(recorded)!r}, os.environ["TENSORBOARD_LOGGING_DIR"])
    """
    attempt = start(place, script, ranks=1)
    assert attempt.exit().outcome == "succeeded"
    lines = attempt.seen.files["event_files"].splitlines()
    names = {name for line in lines for name in json.loads(line)["values"]}
    assert names == {"loss", "accuracy 1", "eval/loss", "eval/accuracy 1"}
    assert len(lines) == 10


def test_a_program_without_code_starts_in_an_empty_folder(place: Place) -> None:
    attempt = place.start(
        launcher=PROGRAM,
        ranks=1,
        program={"command": ["python", "-c", SAY], "working_dir": "."},
    )
    assert attempt.exit().outcome == "succeeded"
    assert said(attempt)["cwd"] == str(attempt.run.root / "code")


def test_a_command_runs_once_a_node_with_the_meeting_point_of_all(
    place: Place, other_place: Place
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        rendezvous = f"127.0.0.1:{free.getsockname()[1]}"
    shared: dict[str, Any] = {
        "ranks": 4,
        "nodes": 2,
        "rendezvous": rendezvous,
        "working_dir": "inner",
        "command": ["python", "../train.py"],
    }
    first = start(place, node_rank=0, **shared)
    second = start(other_place, node_rank=1, attempt_id=first.id, **shared)
    assert first.exit().outcome == "succeeded"
    assert second.exit().outcome == "succeeded"
    for attempt, rank, node in ((first, 0, "0"), (second, 2, "1")):
        found = said(attempt, rank)
        names = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "NNODES", "NPROC_PER_NODE")
        values = [found["env"][name] for name in names]
        assert values == [*rendezvous.split(":"), node, "2", "2"]
        assert "RANK" not in found["env"]
        assert found["cwd"].endswith("/mine/inner")
        assert len(attempt.seen.exit.ranks if attempt.seen.exit else ()) == 1


def test_an_exit_code_fails_the_attempt_with_the_last_lines_of_its_log(place: Place) -> None:
    attempt = start(place, FAIL, launcher="torchrun")
    record = attempt.exit()
    failure = record.failure
    assert record.outcome == "failed"
    assert failure is not None
    assert (failure.reason, failure.rank, failure.exit_code) == ("program_error", 1, 1)
    assert (failure.traceback or "").endswith("the data are missing")
    assert not failure.node_at_fault


@pytest.mark.parametrize(
    ("script", "reason", "words"),
    [
        ("import no_such_module", "program_start_error", "ModuleNotFoundError: No module named"),
        ("while True print(1)", "program_start_error", "progress: SyntaxError: "),
        ("raise RuntimeError('no ImportError: x')", "program_error", "ended with exit code 1"),
        (
            "import trainyard as t\nt.init().progress(1)\nt.init().flush()\nimport nothing",
            "program_error",
            "ended with exit code 1",
        ),
    ],
)
def test_a_program_that_python_cannot_load_is_named_so(
    place: Place, script: str, reason: str, words: str
) -> None:
    failure = start(place, script, ranks=1).exit().failure
    assert failure is not None
    assert failure.reason == reason
    assert words in failure.message


def test_the_attempt_runs_without_a_heartbeat_of_the_program(place: Place) -> None:
    attempt = start(place, SLEEP, guard={"hang_seconds": 0.5})
    attempt.phase(Phase.TRAINING)
    reports = len(attempt.seen.reports)
    wait_for(lambda: len(attempt.seen.reports) > reports + 15, "a second without a hang")
    assert attempt.seen.exit is None
    attempt.seen.desired = DesiredState.CANCEL
    assert attempt.exit().outcome == "cancelled"


def test_a_hang_is_found_once_the_program_has_written_a_heartbeat(place: Place) -> None:
    beat = """
        import json, os, time
        path = os.environ["TRAINYARD_RUN"] + "/heartbeat.json"
        with open(path, "w") as file:
            json.dump({"phase": "training", "step": 7, "time": time.time()}, file)
        time.sleep(600)
    """
    failure = start(place, beat, guard={"hang_seconds": 1.0}).exit().failure
    assert failure is not None
    assert failure.reason == "hang"
    assert "at step 7" in failure.message


@pytest.mark.parametrize("launcher", ["torchrun", "command"])
def test_a_stop_signals_the_ranks_and_waits_for_each(place: Place, launcher: str) -> None:
    attempt = start(place, LEAVE, launcher=launcher, stop_grace_seconds=60.0)
    count = 2 if launcher == "torchrun" else 1
    wait_for(lambda: all("runs" in attempt.log(rank) for rank in range(count)), "ranks")
    asked_at = time.monotonic()
    attempt.seen.desired = DesiredState.STOP
    record = attempt.exit()
    assert (record.outcome, record.failure) == ("stopped", None)
    assert [end.exit_code for end in record.ranks] == [3] * count
    assert all("left" in attempt.log(rank) for rank in range(count))
    assert time.monotonic() - asked_at < 20


def test_a_program_that_ignores_the_signal_is_ended_after_its_grace(place: Place) -> None:
    attempt = start(place, IGNORE, stop_grace_seconds=1.0)
    wait_for(lambda: "runs" in attempt.log(0), "the program")
    attempt.seen.desired = DesiredState.STOP
    record = attempt.exit()
    assert (record.outcome, record.failure) == ("stopped", None)


def test_the_end_of_a_node_is_a_preemption_after_the_same_grace(place: Place) -> None:
    attempt = start(place, LEAVE)
    wait_for(lambda: "runs" in attempt.log(0), "the program")
    os.kill(attempt.pid, signal.SIGTERM)
    failure = attempt.exit().failure
    assert failure is not None
    assert failure.reason == "preempted"
    assert "left" in attempt.log(0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"command": ["absent.py"]}, "program.command[0]='absent.py' is no program in"),
        ({"working_dir": "nowhere"}, "program.working_dir='nowhere'"),
        ({"working_dir": "out"}, "program.working_dir='out' leads out of"),
        ({"code": {"folder": "data:nothing"}}, "program.code.folder='data:nothing': "),
        (
            {"code": {"folder": "other:mine"}},
            "'other:mine': this node has no root 'other'; it has checkpoints",
        ),
        (
            {"spec": {"checkpoint": {"root": "absent"}}, "of_attempt": {"resume": POINT}},
            "checkpoint.root='absent': this node has no root 'absent'; it has checkpoints",
        ),
        ({"environment": {"prefix": "data:mine"}}, "bin/python is no interpreter"),
        ({"environment": {"prefix": "data:no"}}, "program.environment.prefix='data:no': "),
    ],
)
def test_what_the_node_lacks_is_named_before_any_rank_begins(
    place: Place, given: dict[str, Any], message: str
) -> None:
    Path(place.local.roots["data"], "mine", "out").symlink_to("/tmp")
    attempt = start(place, **given)
    failure = attempt.exit().failure
    assert failure is not None
    assert failure.reason == "launch_error"
    assert message in failure.message
    assert "code that was packed needs a new job" in failure.remedy.text
    assert not failure.node_at_fault
    assert not attempt.run.launcher_log.exists()


def test_a_node_that_allows_no_code_starts_nothing(place: Place) -> None:
    place.local = replace(place.local, allow_code=False)
    attempt = start(place)
    failure = attempt.exit().failure
    assert failure is not None
    assert failure.reason == "not_allowed"
    assert failure.message.endswith("Refused: program")
    assert not attempt.run.launcher_log.exists()


def test_an_environment_runs_its_own_programs_and_hides_the_workers(place: Place) -> None:
    programs = Path(place.local.roots["data"], "env", "bin")
    programs.mkdir(parents=True)
    (programs / "python").write_text(f'#!/bin/sh\nOWN=1 exec {sys.executable} "$@"\n')
    (programs / "mine").write_text("#!/bin/sh\nexec python $PWD/train.py tool\n")
    for path in programs.iterdir():
        path.chmod(0o755)
    place.variables |= {"VIRTUAL_ENV": "/worker", "CONDA_PREFIX": "/worker"}
    environment = {"prefix": "data:env"}
    attempt = start(place, command=["mine"], environment=environment)
    assert attempt.exit().outcome == "succeeded"
    found = said(attempt)
    assert found["argv"] == ["tool"]
    assert found["env"]["OWN"] == "1"
    assert found["env"]["VIRTUAL_ENV"] == str(programs.parent)
    assert "CONDA_PREFIX" not in found["env"]
    assert "PYTHONPATH" not in found["env"]


@pytest.mark.parametrize(
    ("begun", "resume", "words", "expected"),
    [
        (False, None, ["--resume"], []),
        (True, None, ["--resume"], ["--resume"]),
        (True, None, ["--from", "{checkpoint}"], []),
        (True, "jobs/7", ["--from", "{checkpoint}/x"], ["--from", "ROOT/jobs/7/x"]),
    ],
)
def test_words_for_a_resume_follow_once_an_earlier_attempt_has_begun(
    place: Place, begun: bool, resume: str | None, words: list[str], expected: list[str]
) -> None:
    point = None
    if resume is not None:
        point = ResumePoint(checkpoint_id="c", path=resume, step=7, metadata_digest="d")
    attempt = start_as(place, begun, point=point, words=words)
    assert attempt.exit().outcome == "succeeded"
    root = place.local.roots["checkpoints"]
    assert said(attempt)["argv"] == [word.replace("ROOT", root) for word in expected]


def start_as(place: Place, begun: bool, *, point: ResumePoint | None, words: list[str]) -> Attempt:
    """Start a second attempt with this resume point, whose former one has begun or not."""
    Path(place.local.roots["data"], "mine", "train.py").write_text(SAY)
    program = {
        "command": ["train.py"],
        "launcher": "command",
        "code": {"folder": "data:mine"},
        "resume": "same_world_size",
        "resume_arguments": words,
    }
    change = {"attempt": 2, "begun_before": begun, "resume": point}
    return place.start(launcher=PROGRAM, ranks=1, program=program, of_attempt=change)


def test_a_file_is_found_in_the_environment_before_the_folder_and_the_path(tmp_path: Path) -> None:
    programs, folder = tmp_path / "bin", tmp_path / "code"
    for place in (programs, folder):
        place.mkdir()
        tool = place / "tool"
        tool.write_text("")
        tool.chmod(0o755)
    (folder / "plain").write_text("")
    interpreter = Interpreter("/python", programs, {})

    def found(word: str) -> list[str]:
        return [*command_of(word, interpreter, folder, path="/bin:/usr/bin")]

    assert found("tool") == [str(programs / "tool")]
    assert found("./tool") == [str(folder / "tool")]
    assert found("python") == ["/python"]
    assert found("sh")[0].endswith("/sh")
    with pytest.raises(ValueError, match="is not executable"):
        found("plain")
    with pytest.raises(ValueError, match="not on PATH"):
        found("no-such-program")


def test_a_folder_lies_below_its_root(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "out").symlink_to(tmp_path)
    roots = {"data": str(tmp_path / "root"), "bucket": "s3://bucket"}
    with pytest.raises(ValueError, match="leads out of its root"):
        folder_at(roots, "data:out", field="program.code.folder")
    with pytest.raises(ValueError, match="is a bucket"):
        folder_at(roots, "bucket:mine", field="program.code.folder")


@pytest.fixture
def other_place(tmp_path: Path) -> Iterator[Place]:
    server = FakeServer()
    made = make_place(tmp_path, server, name="node-2")
    made.local = replace(made.local, allow_code=True)
    yield made
    made.clean()
    server.close()
