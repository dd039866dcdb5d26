"""The `trainyard` command against the real API: its output and exit codes."""

from __future__ import annotations

import base64
import json
import re
import threading
import zlib
from pathlib import Path
from typing import Any

import pytest

from server.api.auth.tokens import hash_token
from server.jobs.attempts.reports import authenticate_share
from server.telemetry.ingest.receive import store_report
from tests.library.conftest import Run, Yard, acting
from tests.server.harness import Supervisor
from trainyard.cli.commands.watch import JsonPrinter
from trainyard.client.sdk import Client
from trainyard.protocol.rest.metrics_and_logs import LogPage
from trainyard.protocol.worker_messages import PROTOCOL, Chunk, Report
from trainyard.run.failures import FailureReason

EXAMPLES = sorted((Path(__file__).resolve().parents[3] / "examples").glob("*.toml"))


def test_help_names_every_command(run: Run) -> None:
    told = run("--help").output
    named = set(re.findall(r"^  ([a-z][a-z-]*)  ", told, re.MULTILINE))
    commands = """
        up down prove login init schema plan submit import ps queue show events nodes sources
        projects members groups service-accounts secrets tokens users whoami audit watch metrics
        logs artifacts compare goodput advise checkpoints operations export sample stop cancel kill
        priority resume delete save profile snapshot shell fork
    """
    assert named == set(commands.split())
    assert max(map(len, told.splitlines())) <= 80


def test_without_a_server_it_says_what_to_do(run: Run) -> None:
    result = run("ps")
    assert result.exit_code == 2
    assert "trainyard up" in result.stderr


def test_a_server_that_is_away_is_a_failure(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_URL", "http://127.0.0.1:1")
    monkeypatch.setattr("trainyard.client.transport.TRIES", 1)
    result = run("ps")
    assert result.exit_code == 1
    assert "Cannot reach the server at http://127.0.0.1:1" in result.stderr


def test_from_init_over_plan_to_submit(yard: Yard, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "my job.toml"
    assert run("init", str(file)).exit_code == 0
    again = run("init", str(file))
    assert (again.exit_code, "--force" in again.stderr) == (2, True)

    plan = run("plan", str(file))
    assert plan.exit_code == 0
    assert "FSDP 2 on 2 slots" in plan.stdout
    assert "16 sequences a step: 4 micro-batches of 4" in plan.stdout
    assert json.loads(run("plan", str(file), "--json").stdout)["world_size"] == 2

    job = json.loads(run("submit", str(file), "--set", "training.steps=17", "--json").stdout)
    assert (job["name"], job["state"], job["progress"]["steps"]) == ("my-job", "queued", 17)


def test_each_example_is_a_legal_spec(yard: Yard, run: Run) -> None:
    assert [run("plan", str(file)).exit_code for file in EXAMPLES] == [0]


def test_what_is_wrong_with_a_spec_is_said_field_by_field(
    yard: Yard, run: Run, tmp_path: Path
) -> None:
    file = tmp_path / "job.toml"
    file.write_text("[training]\nseq_len = 0\n")
    result = run("submit", str(file), "--set", "optimizer.lr=-1", "--set", "training.stepps=3")
    assert result.exit_code == 2
    told = result.stderr
    assert re.search(r"training\.seq_len  .*greater.*\n    .*job\.toml: training\.seq_len", told)
    assert re.search(r"optimizer\.lr  .*-1\n    --set optimizer\.lr=-1", told)
    assert "did you mean training.steps?" in told
    assert run("ps").stdout.startswith("No jobs.")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("submit", "--set", "training.steps"), "section.field=value"),
        (("submit", "nowhere.toml"), "nowhere.toml: No such file"),
        (("show", "nothing"), "No job is called"),
        (("ps", "--state", "dead"), "dead"),
        (("nonsense",), "nonsense"),
        (
            (
                "submit",
                *("--set=training.global_batch_size=20000", "--set=training.micro_batch_size=1"),
                "--set=resources.world_size=20000",
            ),
            "--set resources.world_size=20000",
        ),
    ],
)
def test_usage_errors_exit_with_2(
    yard: Yard, run: Run, arguments: tuple[str, ...], said: str
) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_token_that_opens_nothing_says_how_to_log_in(
    yard: Yard, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINYARD_TOKEN", "ty_api_wrong")
    result = run("ps")
    assert result.exit_code == 1
    assert "trainyard login" in result.stderr


def test_login_checks_the_token_and_keeps_it(
    yard: Yard, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRAINYARD_URL")
    monkeypatch.delenv("TRAINYARD_TOKEN")
    assert run("login", yard.url, "--token", "ty_api_wrong").exit_code == 1
    assert run("ps").exit_code == 2
    link = run("login", f"{yard.url}/login?code=ty_login_x", "--token", yard.token)
    assert link.exit_code == 2
    assert "logs a browser in" in link.stderr
    asked = run("login", yard.url, stdin=f"{yard.token}\n")
    assert asked.exit_code == 0
    assert yard.token not in asked.output
    assert run("ps").exit_code == 0


def test_the_table_of_jobs_is_aligned_and_whole(yard: Yard, run: Run) -> None:
    long = "a" * 80
    yard.harness.running(name="small", step=3)
    yard.harness.submit(name=long, resources={"world_size": 4})
    yard.harness.place()
    lines = run("ps").stdout.splitlines()
    assert lines[3:] == ["", "○ queued 1   ● running 1"]
    assert long in lines[2]
    assert "needs 4 slots, 3 free" in lines[2]
    column = lines[0].index("STATE")
    assert lines[1][column:].startswith("● running")
    assert lines[2][column:].startswith("○ queued")
    assert "\x1b" not in "".join(lines)
    assert run("ps", "--state", "running", "--json").stdout.count('"id"') == 1
    assert "1 not shown: --limit" in run("ps", "--limit", "1").stdout


def test_colours_only_where_they_are_wanted(
    yard: Yard, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    yard.harness.submit(name="colourful")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    colour = re.compile(r"\x1b\[[0-9;]*3[0-7]m")
    assert colour.search(run("ps").stdout)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not colour.search(run("ps").stdout)


def test_show_tells_the_story_of_a_job(yard: Yard, run: Run) -> None:
    harness = yard.harness
    job_id, supervisors = harness.running(
        name="story", step=30, resources={"world_size": 2}, retry={"max_retries": 0}
    )
    older = harness.commit_checkpoint(job_id, 10)
    harness.commit_checkpoint(job_id, 30)
    supervisors[0].end("failed", FailureReason.OUT_OF_MEMORY)
    told = run("show", "story").stdout
    assert "✗ failed" in told
    assert told.count("out_of_memory on node-1") == 1
    assert "Resume on more slots" in told
    assert "trainyard resume story --world-size N" in told

    resumed = run("resume", "story@step-10", "--world-size", "4", "--steps", "200")
    assert resumed.exit_code == 0
    harness.place()
    told = run("show", "story").stdout
    rows = [line.split() for line in told.splitlines() if re.match(r" +[12]  ", line)]
    assert [row[:2] for row in rows] == [["1", "submit"], ["2", "resume"]]
    assert older.partition(".")[2] in told
    assert "FSDP 4" in told
    events = run("events", "story").stdout
    assert events.index("requests 2 slots") < events.index("out_of_memory")
    assert run("checkpoints", "story").stdout.count(job_id) == 2
    assert "story (4)" in run("nodes").stdout


def test_show_tells_spare_nodes_from_those_with_ranks(yard: Yard, run: Run) -> None:
    yard.harness.add_node("other", slots=1)
    yard.harness.launched(name="safe", resources={"nodes": 1, "spare_nodes": 1})
    assert "other (1), node-1 (1, spare)" in run("show", "safe").stdout


def test_a_dry_run_compares_and_changes_nothing(yard: Yard, run: Run) -> None:
    job_id, supervisors = yard.harness.running(name="dry", resources={"world_size": 2})
    yard.harness.commit_checkpoint(job_id, 1)
    stop(yard, job_id, supervisors)
    result = run("resume", "dry", "--world-size", "4", "--dry-run")
    assert result.exit_code == 0
    assert re.search(r"^  layout +FSDP 2 +FSDP 4 +changes$", result.stdout, re.MULTILINE)
    assert re.search(r"^  global batch size +16 +16 +stays$", result.stdout, re.MULTILINE)
    assert re.search(r"^  idle share +0\.0 % +0\.0 % +stays$", result.stdout, re.MULTILINE)
    assert re.search(r"^  memory of a slot +\d+\.\d MiB +\d+\.\d MiB ", result.stdout, re.MULTILINE)
    assert "Nothing was changed." in result.stdout
    with yard.connect() as sdk:
        assert sdk.job(job_id).state == "stopped"
    listed = run("resume", "dry", "--options").stdout
    assert re.search(r"^ +4  yes +FSDP 4, .*HSDP 2x2, DDP 4", listed, re.MULTILINE)


def test_a_resume_changes_a_section_from_what_holds_now(yard: Yard, run: Run) -> None:
    job_id, supervisors = yard.harness.running(
        name="over", retry={"max_retries": 7}, resources={"world_size": 2}
    )
    yard.harness.commit_checkpoint(job_id, 1)
    stop(yard, job_id, supervisors)
    changes = ("--set", "retry.backoff_seconds=1", "--set", "training.micro_batch_size=2")
    assert run("resume", "over", *changes).exit_code == 0
    with yard.connect() as sdk:
        pending = sdk.job(job_id).pending
    assert pending is not None
    overrides = pending.overrides
    assert overrides.micro_batch_size == 2
    assert overrides.retry is not None
    assert (overrides.retry.max_retries, overrides.retry.backoff_seconds) == (7, 1)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("model.dim=64", "it would change the result"),
        ("training.seed=1", "it would change the result"),
        ("training=", "it would change the result"),
        ("training.micro_batch_size=0", "training.micro_batch_size  Input should be"),
        ("parallelism.tp=0", "--set parallelism.tp=0"),
        ("training.micro_batch_size=0", "--set training.micro_batch_size=0"),
    ],
)
def test_a_resume_that_is_not_legal_names_the_setting(
    yard: Yard, run: Run, setting: str, said: str
) -> None:
    job_id, supervisors = yard.harness.running(name="strict", resources={"world_size": 2})
    yard.harness.commit_checkpoint(job_id, 1)
    stop(yard, job_id, supervisors)
    result = run("resume", "strict", "--set", setting)
    assert result.exit_code == 2
    assert said in result.stderr
    with yard.connect() as sdk:
        assert sdk.job(job_id).state == "stopped"


def test_stop_cancel_kill_and_delete(yard: Yard, run: Run) -> None:
    for name in ("one", "two", "three"):
        yard.harness.submit(name=name)
    assert "stopped" in run("stop", "one").stdout
    asked = run("cancel", "two")
    assert (asked.exit_code, "--yes" in asked.stderr) == (2, True)
    assert "cancelled" in run("cancel", "two", "--yes").stdout
    assert json.loads(run("kill", "three", "--json").stdout)["job"]["state"] == "cancelled"
    conflict = run("stop", "one")
    assert conflict.exit_code == 1
    assert "stopped" in conflict.stderr
    assert run("delete", "one").exit_code == 2
    assert run("delete", "one", "--yes").exit_code == 0
    assert "one" not in run("ps").stdout


def test_cancel_says_what_is_lost(yard: Yard, run: Run) -> None:
    job_id, _ = yard.harness.running(name="lossy", step=340, training={"steps": 400})
    yard.harness.commit_checkpoint(job_id, 100)
    assert "240 steps since the last checkpoint" in run("cancel", "lossy").stderr
    assert "240 steps since step-100" in run("kill", "lossy").stdout


def test_a_job_whose_spec_cannot_be_read_is_killed(yard: Yard, run: Run) -> None:
    job_id = yard.harness.submit(name="later")
    yard.harness.spoil_spec(job_id)
    assert run("kill", "later").exit_code == 1  # there is no view of it to print
    assert yard.harness.job(job_id).state == "cancelled"


@pytest.mark.parametrize(
    ("outcome", "code"), [("succeeded", 0), ("failed", 1), ("stopped", 3), ("cancelled", 3)]
)
def test_submit_waits_and_its_exit_code_tells_the_end(
    yard: Yard, run: Run, outcome: str, code: int
) -> None:
    harness = yard.harness

    def play() -> None:
        with yard.connect() as sdk:
            while not (jobs := list(sdk.jobs(name="waited"))):
                pass
        harness.place()
        [supervisor] = harness.claim_all(jobs[0].id)
        supervisor.train(1)
        with yard.connect() as sdk:
            if outcome == "stopped":
                sdk.stop(jobs[0].id)
            if outcome == "cancelled":
                sdk.cancel(jobs[0].id)
        reason = FailureReason.DATA_ERROR if outcome == "failed" else None
        supervisor.end(outcome, reason)

    with acting(play):
        result = run("submit", "--wait", "--set", "name=waited")
    assert result.exit_code == code, result.output
    assert outcome in result.stdout.splitlines()[-1]
    assert "waited" in run("watch", "waited").stdout


def test_watch_writes_events_as_json_lines(
    yard: Yard, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id, [supervisor] = yard.harness.running(name="lines")
    # The screen shows the job once its stream is open: later changes are events.
    monkeypatch.setattr(JsonPrinter, "show", lambda *_: supervisor.end("succeeded"))
    result = run("watch", job_id, "--json")
    assert result.exit_code == 0
    kinds = [json.loads(line)["kind"] for line in result.stdout.splitlines()]
    assert kinds[-1] == "job_ended"


def stop(yard: Yard, job_id: str, supervisors: list[Supervisor]) -> None:
    """Stop a job, and play its nodes."""
    with yard.connect() as sdk:
        sdk.stop(job_id)
    for supervisor in supervisors:
        supervisor.end("stopped")


def test_logs_are_shown_searched_and_followed_over_attempts(
    yard: Yard, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id, [supervisor] = yard.harness.running(name="chatty", retry={"backoff_seconds": 0})
    write(yard, supervisor, "one\ntwo\nTHREE errors\n")
    assert run("logs", "chatty").stdout.splitlines() == ["one", "two", "THREE errors"]
    last = run("logs", "chatty", "--lines", "1")
    assert last.stdout == "THREE errors\n"
    assert "2 earlier lines" in last.stderr
    assert run("logs", "chatty", "--search", "three").stdout == "THREE errors\n"
    assert run("logs", "chatty", "--rank", "7").exit_code == 2

    is_read, logs = threading.Event(), Client.logs

    def read(client: Client, *arguments: Any, **options: Any) -> LogPage:
        page = logs(client, *arguments, **options)
        is_read.set()
        return page

    def play() -> None:
        assert is_read.wait(60)  # otherwise the last line of the log would be another one
        write(yard, supervisor, "four\n", start=21)
        supervisor.end("failed", FailureReason.TRAINER_ERROR)
        yard.harness.place()
        [again] = yard.harness.claim_all(job_id)
        write(yard, again, "anew\n")
        stop(yard, job_id, [again])

    monkeypatch.setattr(Client, "logs", read)
    with acting(play):
        followed = run("logs", "chatty", "--follow", "--lines", "1")
    assert followed.stdout.splitlines() == ["THREE errors", "four", "anew"]
    assert "Attempt 2" in followed.stderr


def write(yard: Yard, supervisor: Supervisor, text: str, *, start: int = 0) -> None:
    """Report output of rank 0."""
    content = base64.b64encode(zlib.compress(text.encode())).decode()
    chunk = Chunk(file="log:0", start=start, end=start + len(text), content=content)
    report = Report(
        protocol=PROTOCOL, node=supervisor.node, identity=supervisor.identity, chunks=(chunk,)
    )
    token = hash_token(supervisor.reply.attempt_token)
    share = authenticate_share(yard.harness.context, supervisor.attempt_id, token)
    store_report(yard.harness.context, share, report)
