"""Secrets of a real program: its ranks get them, and what leaves the node does not have them."""

from __future__ import annotations

import json
import os
import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.worker.conftest import Attempt, Place, wait_for
from tests.worker.launchers.process_launcher import PROGRAM, launcher_of
from trainyard.base.redaction import OutputMask
from trainyard.run.fact_types.fact_records import RunFacts
from trainyard.run.failures import Failure, FailureReason, LoadFailure, Remedy
from trainyard.run.record_base import to_json
from trainyard.run.records import MetricRecord
from worker.launchers.base import Share
from worker.masking import (
    PART_BYTES,
    forget_left_secrets,
    forget_secrets,
    masked_lines,
    masked_value,
)
from worker.node.files import tail
from worker.node.node_store import WorkerRun
from worker.supervisor.supervise import run_detached

TOKEN, KEY = "hf_AbCdEfGh0123456789", "-----BEGIN-----\nc2VjcmV0IGtleQ==\n-----END-----"
SECRETS = {"HF_TOKEN": TOKEN, "SSH_KEY": KEY}
ENV = {"HF_TOKEN": {"secret": "hf"}, "SSH_KEY": {"secret": "ssh"}, "PLAIN": "plain value"}
PROGRAM_TEXT = """
import os, resource, sys, time
import trainyard

token, key = os.environ["HF_TOKEN"], os.environ["SSH_KEY"]
run = trainyard.init(config={"token": token, "nested": {"key": key}, "lr": 0.1}, tags=[token])
run.log({"train/loss": 1.0, "of/" + token: 2.0}, step=1)
print("plain is", os.environ["PLAIN"], flush=True)
print("core files:", resource.getrlimit(resource.RLIMIT_CORE)[0], flush=True)
print("whole", token, "and", key, flush=True)
for part in ("split ", token[:7], token[7:], " ends\\n"):
    os.write(1, part.encode())
    time.sleep(0.4)
os.write(1, b"the last words begin like a token: " + token[:3].encode())
raise ValueError("a bad token: " + token)
"""


@pytest.fixture
def attempt(place: Place) -> Attempt:
    """A program with secrets, which fails."""
    place.local = replace(place.local, allow_code=True)
    program: dict[str, Any] = {
        "command": ["python", "-c", PROGRAM_TEXT],
        "launcher": "command",
    }
    return place.start(
        launcher=PROGRAM, ranks=1, program=program, spec={"env": ENV}, secrets=SECRETS
    )


def lines(attempt: Attempt) -> list[str]:
    return attempt.log().splitlines()


def test_what_reaches_the_server_has_masks(attempt: Attempt) -> None:
    record = attempt.exit()
    assert record.failure is not None
    log = attempt.log()
    assert "plain is plain value" in log
    assert "core files: 0" in log
    assert f"whole {'*' * len(TOKEN)} and {'*' * len(KEY)}" in log
    assert f"split {'*' * len(TOKEN)} ends" in log
    assert "the last words begin like a token: hf_" in log, "no byte of a log is held back forever"
    assert f"a bad token: {'*' * len(TOKEN)}" in (record.failure.traceback or "")
    everything = b"".join(attempt.seen.files.values())
    everything += "".join(each.model_dump_json() for each in attempt.seen.reports).encode()
    for value in (TOKEN, TOKEN[4:], "c2VjcmV0IGtleQ=="):
        assert value.encode() not in everything
    facts = [each.facts for each in attempt.seen.reports if each.facts is not None]
    assert facts[-1].config["token"] == "*" * len(TOKEN)
    assert facts[-1].config["lr"] == 0.1


def test_the_run_directory_keeps_no_value(attempt: Attempt) -> None:
    run = attempt.run
    mode = run.delivered.stat().st_mode & 0o777
    assert mode == 0o600
    assert TOKEN not in run.spec.read_text()
    attempt.exit()
    assert attempt.supervisor is not None
    assert attempt.supervisor.wait(30) == 0
    assert not run.delivered.exists()
    for path in run.root.rglob("*"):
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            assert TOKEN.encode() not in content, path
            assert b"c2VjcmV0IGtleQ==" not in content, path


def test_a_supervisor_leaves_no_core_file(
    run: WorkerRun, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """It holds the values too."""
    former = resource.getrlimit(resource.RLIMIT_CORE)
    request.addfinalizer(lambda: resource.setrlimit(resource.RLIMIT_CORE, former))
    resource.setrlimit(resource.RLIMIT_CORE, (former[1], former[1]))
    lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    run.launch.unlink(missing_ok=True)  # so that the supervisor ends at once
    run_detached(run.root, lock, launcher_of(PROGRAM, ()))
    assert resource.getrlimit(resource.RLIMIT_CORE) == (0, former[1])
    assert not (tmp_path / "lock").exists()


def test_a_process_that_reports_for_a_dead_supervisor_masks_too(
    attempt: Attempt, place: Place
) -> None:
    wait_for(lambda: b"split" in attempt.seen.files.get("log:0", b""), "output")
    assert attempt.supervisor is not None
    attempt.supervisor.kill()
    attempt.supervisor.wait()
    attempt.supervisor = place.supervise(attempt.id, attempt.run, PROGRAM)
    attempt.exit()
    assert attempt.supervisor.wait(30) == 0
    assert TOKEN not in attempt.log()
    assert not attempt.run.delivered.exists()


# ---- the end of an attempt -----------------------------------------------------------------------


def test_files_outside_of_the_run_directory_stay(run: WorkerRun, tmp_path: Path) -> None:
    """A rank could link to them, or put a pipe there."""
    run.delivered.write_text(json.dumps({"T": TOKEN}))
    outside = tmp_path / "outside"
    outside.write_text(TOKEN)
    (run.logs / "link.log").symlink_to(outside)
    os.link(outside, run.logs / "hard.log")
    os.mkfifo(run.logs / "pipe.log")
    log = Path(run.log(0))
    with log.open("wb") as file:
        file.truncate(2**40)  # a hole, which takes no time
        file.seek(0, os.SEEK_END)
        file.write(b"x" * (1024 * 1024 - 5) + TOKEN.encode() + b" end")
    forget_secrets(run)
    assert outside.read_text() == TOKEN
    assert log.stat().st_size == 2**40 + 1024 * 1024 - 1 + len(TOKEN)
    with log.open("rb") as file:
        file.seek(-len(TOKEN) - 4, os.SEEK_END)
        assert file.read() == b"*" * len(TOKEN) + b" end"
    assert not run.delivered.exists()


@pytest.mark.parametrize("stored", [json.dumps({"T": TOKEN}), "{"])
def test_errors_that_programs_record_for_torchrun_are_removed(run: WorkerRun, stored: str) -> None:
    run.delivered.write_text(stored)
    error = run.torchrun / "id_x" / "attempt_0" / "0" / "error.json"
    error.parent.mkdir(parents=True)
    error.write_text(TOKEN)
    forget_secrets(run)
    assert not run.torchrun.exists()


def test_unreadable_secrets_end_with_the_files_that_may_hold_them(run: WorkerRun) -> None:
    run.delivered.write_text("{")
    log = Path(run.log(0))
    log.write_text(TOKEN)
    run.spec.write_text("{}")
    forget_secrets(run)
    assert not run.delivered.exists()
    assert not log.exists()
    assert run.spec.exists(), "the worker wrote it, without values"
    forget_secrets(run)


def test_records_stay_readable(run: WorkerRun) -> None:
    run.delivered.write_text(json.dumps({"A": "checkpoint", "B": "data_digest", "C": TOKEN}))
    run.spec.write_text('{"name": "checkpoint"}')
    record = {"kind": "checkpoint_settled", "data_digest": TOKEN[-9:] + " x", "step": 1}
    run.events.write_text(f"{json.dumps(record)}\n" * 30_000)
    forget_secrets(run)
    assert run.spec.read_text() == '{"name": "checkpoint"}'
    found = set(run.events.read_text().splitlines())
    assert [json.loads(each) for each in found] == [record | {"data_digest": "********* x"}]


def test_a_commit_stays_whole() -> None:
    """A secret may be a word that is part of a path, such as the name of a user of a database."""
    mask = OutputMask(["trainyard"])
    commit = b'{"kind":"checkpoint_committed","data":{"path":"/trainyard/01/step-5"}}\n'
    other = b'{"kind":"save_failed","data":{"error":"checkpoint_committed trainyard"}}\n'
    torn = b'{"kind":"checkpoint_committed","error":"trainyard\n'
    brackets = b"[" * 200_000 + b"]" * 200_000
    torn += b'{"kind":"checkpoint_committed","trainyard":' + brackets + b"}\n"
    masked = masked_lines(commit + other + torn + commit, mask)
    hidden = (other + torn).replace(b"trainyard", b"*" * 9)
    assert masked == commit + hidden + commit


def test_names_of_values_are_masked() -> None:
    mask = OutputMask(["correcthorse", "data_digest"])
    record = MetricRecord(step=1, time=1.0, values={"correcthorse": 1.0}, data_digest="ab")
    masked = masked_lines(to_json(record).encode() + b"\n", mask)
    assert json.loads(masked)["values"] == {"*" * 12: 1.0}
    assert json.loads(masked)["data_digest"] == "ab"
    facts = masked_value(RunFacts(config={"correcthorse": 1}), mask)
    assert facts.config == {"*" * 12: 1}


def test_a_run_of_a_periodic_value_is_masked(run: WorkerRun) -> None:
    run.delivered.write_text(json.dumps({"T": "=" * 8}))
    log = Path(run.log(0))
    log.write_bytes(b"=" * (2 * PART_BYTES + 3))
    forget_secrets(run)
    assert log.read_bytes() == b"*" * (2 * PART_BYTES + 3)


def test_secrets_that_no_process_serves_are_removed_at_the_start(place: Place) -> None:
    """Such as after a worker that ended during a launch."""
    run = WorkerRun(place.local.store.runs / "job" / "1")
    run.root.mkdir(parents=True)
    run.delivered.write_text(json.dumps({"T": TOKEN}))
    forget_left_secrets(place.local.store)
    assert not run.delivered.exists()


def test_the_tail_of_a_log_is_masked_before_it_is_cut(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(f"x {TOKEN} the end")
    assert tail(log, mask=OutputMask([TOKEN]), limit=14) == "****** the end"


def test_a_record_keeps_its_words() -> None:
    failure = Failure(
        reason=FailureReason.TRAINER_ERROR,
        message=f"bad {TOKEN}",
        metric=TOKEN,
        node="node-1",
        load=LoadFailure(checkpoint_id=TOKEN, fault=None),
        remedy=Remedy(text=f"change {TOKEN}"),
    )
    masked = masked_value(failure, OutputMask([TOKEN, "trainer_error"]))
    assert masked.reason is FailureReason.TRAINER_ERROR
    assert TOKEN not in to_json(masked)
    assert masked.node == "node-1"


def test_a_launch_without_its_secrets_starts_no_rank(attempt: Attempt) -> None:
    attempt.exit()
    assert attempt.supervisor is not None
    assert attempt.supervisor.wait(30) == 0
    share = Share.read(attempt.run)
    with pytest.raises(ValueError, match=r"secrets\.json has no value for env\.HF_TOKEN, env\.SSH"):
        _ = share.environment
