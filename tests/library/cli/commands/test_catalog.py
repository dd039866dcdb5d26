"""`checkpoints` and `operations`: output, effects and exit codes of the commands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from threading import Event, Thread

import pytest

from server.core.subject import EXPORTING
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.checkpoints.catalog import record_stall
from server.jobs.checkpoints.guards import locked_to_stay
from server.jobs.checkpoints.service import queue_on
from server.jobs.operations.service import claim_operation, report_operation
from tests.library.conftest import Run, Yard
from tests.server.harness import WORKER
from tests.server.yard import APPLY
from tests.server.yard import Yard as Operations
from trainyard.cli.commands.operations import DONE
from trainyard.protocol.manifest import ManifestFile, ManifestWriter, SaveSettled
from trainyard.protocol.operations import (
    LOOKS,
    AutoExportTask,
    ExportResult,
    ExportTask,
    OperationKind,
    OperationOutcome,
    SampleEnd,
    SampleResult,
    SampleTask,
    Verification,
)
from trainyard.protocol.worker_messages import PROTOCOL, OperationReport
from trainyard.run.checkpoint_faults import CheckpointFault


@pytest.fixture
def job(yard: Yard) -> str:
    """A running job, named `tiny`, with two checkpoints."""
    job_id, _ = yard.harness.running(step=9)
    for step in (4, 8):
        yard.harness.commit_checkpoint(job_id, step)
    return job_id


@pytest.fixture
def fault() -> list[CheckpointFault]:
    """The fault that the node finds; none if empty."""
    return []


@pytest.fixture
def node(yard: Yard, fault: list[CheckpointFault]) -> Iterator[None]:
    """A node that runs its operations."""
    stop = Event()

    def work() -> None:
        while not stop.wait(0.02):
            yard.harness.keeper.run()
            while yard.harness.dispatcher.operations:
                message = yard.harness.dispatcher.operations.pop()
                do(yard, message.operation_id, fault)

    thread = Thread(target=work)
    thread.start()
    yield
    stop.set()
    thread.join()


def do(yard: Yard, operation_id: str, fault: list[CheckpointFault]) -> None:
    context = yard.harness.context
    claim = claim_operation(context, operation_id, node="node-1", worker=WORKER)
    found = Verification(
        ok=not fault,
        at=datetime.now(UTC),
        loaded_at=None if fault else datetime.now(UTC),
        fault=fault[0] if fault else None,
        message="model.bin" if fault else None,
    )
    outcome = OperationOutcome(
        outcome="succeeded",
        message="file_damaged: model.bin" if fault else "all is well",
        verification=found if claim.task.kind in LOOKS else None,
        export=written(claim.task.export) if claim.task.export else None,
        sample=drawn(claim.task.sample) if claim.task.sample else None,
    )
    report = OperationReport(protocol=PROTOCOL, node="node-1", fence=claim.fence, outcome=outcome)
    report_operation(context, operation_id, report, apply=APPLY)


def written(asked: ExportTask) -> ExportResult:
    return ExportResult(
        place=asked.place, path=f"/srv/{asked.name}", dtype=asked.dtype, files=5, size=999
    )


def drawn(asked: SampleTask) -> SampleResult:
    text = f"{asked.prompt}\x1b[2J{asked.seed} at {asked.temperature:g}\n"
    return SampleResult(text=text, tokens=asked.max_tokens, ended=SampleEnd.MAX_TOKENS)


def test_who_wrote_a_checkpoint_and_what_it_cost(run: Run, yard: Yard, job: str) -> None:
    writers = tuple(
        ManifestWriter(rank=rank, size=2**30, files=1, write_seconds=seconds)
        for rank, seconds in ((0, 1.0), (2, 2.0))
    )
    files = (ManifestFile(path=".metadata", size=2**31, xxh3_128="a" * 32),)
    identifier = yard.harness.commit_checkpoint(job, 9, files=files, writers=writers)
    lines = run("checkpoints", "tiny").stdout.splitlines()
    assert "2 writers, 1 GiB/s" in lines[1]
    assert "stall" not in lines[1]
    assert "in 0.10 s" in lines[2]
    settled = SaveSettled(checkpoint_id=identifier, stall_seconds=0.02)
    with yard.harness.context.database.write() as connection:
        assert record_stall(connection, yard.harness.attempt(job).id, settled)
    assert "2 writers, 1 GiB/s, stall 0.02 s" in run("checkpoints", "tiny").stdout
    shown = run("checkpoints", "tiny@step-9").stdout.splitlines()
    assert "2 GiB in 1 file" in shown[0]
    assert "training waited: 0.02 s" in shown[1]
    facts = dict(line.split(None, 1) for line in shown[2:8])
    assert (facts["weights"], facts["parent"]) == ("float32", "none")
    assert [line.split() for line in shown[9:]] == [
        ["0", "1", "GiB", "1", "1.00", "1", "GiB/s"],
        ["2", "1", "GiB", "1", "2.00", "512", "MiB/s"],
    ]
    view = json.loads(run("checkpoints", "tiny@step-9", "--json").stdout)
    assert view["manifest"]["writers"][1]["write_seconds"] == 2.0


def test_an_automatic_export_is_shown_with_its_place_or_its_failure(
    run: Run, yard: Yard, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.jobs.operations.service.MAX_TRIES", 1)
    context = yard.harness.context
    full = OperationOutcome(outcome="failed", message="the disk is full")
    result = ExportResult(place="c:h", path="/srv/h", dtype="float32", files=5, size=2**20)
    done = OperationOutcome(outcome="succeeded", message="5 files", export=result)
    for step, outcome in ((4, full), (8, done)):
        with context.database.write() as connection:
            owner, checkpoint = locked_to_stay(
                connection, f"{job}.a1.step-{step}", scope=SYSTEM_SCOPE
            )
            operation_id = queue_on(
                context,
                connection,
                job=owner,
                checkpoint=checkpoint,
                kind=OperationKind.AUTO_EXPORT,
                actor=EXPORTING,
                auto_export=AutoExportTask(format="safetensors"),
            )
        assert "queued" in run("checkpoints", "tiny").stdout
        nodes = Operations(yard.harness)
        nodes.give()
        fence = nodes.claim(operation_id).fence
        nodes.report(operation_id, fence=fence, outcome=outcome)
    lines = run("checkpoints", "tiny").stdout.splitlines()
    assert "✓ safetensors" in lines[1]
    assert "failed" in lines[2]
    assert lines[-1] == f"{job}.a1.step-4: not exported: the disk is full"
    assert "/srv/h (safetensors, 1 MiB, " in run("checkpoints", "tiny@step-8").stdout
    assert "not exported: the disk is full" in run("checkpoints", "tiny@step-4").stdout


@pytest.mark.usefixtures("node")
def test_a_verification_is_waited_for_and_shown(run: Run, job: str) -> None:
    result = run("checkpoints", "verify", "tiny@step-4", "--wait")
    assert result.exit_code == 0
    assert result.stdout == "✓ Verified tiny@a1.step-4: all is well\n"
    lines = run("checkpoints", "tiny").stdout.splitlines()
    assert "✓ loaded, " in lines[2]
    assert "✓" not in lines[1]
    (view,) = json.loads(run("operations", "tiny", "--json").stdout)
    assert (view["kind"], view["checkpoint_id"]) == ("verify", f"{job}.a1.step-4")


@pytest.mark.usefixtures("job")
def test_an_operation_is_taken_back(run: Run) -> None:
    operation = json.loads(run("checkpoints", "verify", "tiny@step-4", "--json").stdout)["id"]
    told = run("operations", "cancel", operation[:14])
    assert told.stdout == "⊘ verify of tiny@a1.step-4 is cancelled\n"
    again = run("operations", "cancel", operation)
    assert (again.exit_code, "has already ended: cancelled" in again.stderr) == (1, True)
    assert run("operations", "cancel", "nothing").exit_code == 2
    assert run("operations", "kill", operation).exit_code == 2


@pytest.mark.usefixtures("node", "job")
def test_a_damaged_one_ends_the_command_with_1(run: Run, fault: list[CheckpointFault]) -> None:
    fault.append(CheckpointFault.FILE_DAMAGED)
    result = run("checkpoints", "verify", "tiny@step-4", "--wait")
    assert result.exit_code == 1
    assert result.stdout == "✗ verify of tiny@a1.step-4: file_damaged: model.bin\n"
    assert "✗ file_damaged" in run("checkpoints", "tiny").stdout


@pytest.mark.usefixtures("node")
def test_a_pinned_one_stays_and_the_other_goes(run: Run, job: str, yard: Yard) -> None:
    assert run("checkpoints", "pin", "tiny@step-4").stdout == f"{job}.a1.step-4 is pinned.\n"
    assert (
        "was pinned already, by admin: nothing" in run("checkpoints", "pin", "tiny@step-4").stdout
    )
    refusal = run("checkpoints", "delete", "tiny@step-4", "--yes")
    assert refusal.exit_code == 1
    assert "was pinned by admin; unpin it first" in " ".join(refusal.stderr.split())
    assert run("checkpoints", "delete", "tiny@step-8", "--yes", "--wait").exit_code == 0
    with yard.connect() as connection:
        assert [c.step for c in connection.checkpoints(job)] == [4]
    assert "no longer pinned" in run("checkpoints", "unpin", "tiny@step-4").stdout
    assert "was not pinned: nothing changed" in run("checkpoints", "unpin", "tiny@step-4").stdout


def test_one_that_two_attempts_have_saved_is_deleted_by_its_whole_name_alone(
    run: Run, yard: Yard
) -> None:
    job_id, (supervisor,) = yard.harness.running(name="twice", step=4)
    yard.harness.commit_checkpoint(job_id, 4)
    with yard.connect() as connection:
        connection.stop(job_id)
        supervisor.end("stopped")
        connection.resume(job_id)
    yard.harness.place()
    again = yard.harness.commit_checkpoint(job_id, 4)
    refusal = run("checkpoints", "delete", "twice@step-4", "--yes")
    assert refusal.exit_code == 2
    assert "twice@a2.step-4, twice@a1.step-4" in " ".join(refusal.stderr.split())
    assert run("checkpoints", "pin", "twice@step-4").stdout == f"{again} is pinned.\n"


@pytest.mark.usefixtures("node")
def test_an_export_is_waited_for_and_names_its_folder(run: Run, job: str) -> None:
    result = run("export", "tiny", "--dtype", "bfloat16", "--name", "mine", "--wait", "--json")
    assert result.exit_code == 0
    view = json.loads(result.stdout)
    assert view["checkpoint_id"] == f"{job}.a1.step-8"  # the newest
    assert view["outcome"]["export"]["place"] == "checkpoints:exports/mine"
    told = run("export", "tiny@step-4", "--wait", "--shard-gib", "0.5").stdout
    assert told == "✓ Exported tiny@a1.step-4: all is well\n"
    shown = run("operations", "tiny").stdout
    assert "export" in shown
    refusal = run("export", "tiny@step-4", "--root", "attic", "--dtype", "int8")
    assert refusal.exit_code == 2
    assert "dtype  Input should be 'float32', 'bfloat16' or 'float16'" in refusal.stderr


@pytest.mark.usefixtures("node", "job")
def test_a_sample_is_printed_and_can_order_the_terminal_nothing(run: Run) -> None:
    result = run("sample", "tiny", "--prompt", "def ", "--seed", "3", "--temperature", "0")
    assert (result.exit_code, result.stdout) == (0, "def \ufffd[2J3 at 0\n\n")
    view = json.loads(run("sample", "tiny@step-4", "--max-tokens", "9", "--json").stdout)
    assert view["outcome"]["sample"]["tokens"] == 9
    refusal = run("sample", "tiny", "--max-tokens", "5000")
    assert refusal.exit_code == 2
    assert "max_tokens" in refusal.stderr


@pytest.mark.usefixtures("job")
def test_without_a_node_it_prints_where_to_look_and_why_it_waits(run: Run, yard: Yard) -> None:
    result = run("checkpoints", "verify", "tiny@step-4")
    assert result.stdout == "verify of tiny@a1.step-4 is queued; `trainyard operations` shows it\n"
    shown = run("operations", "--open").stdout
    assert "tiny@a1.step-4" in shown
    assert "○ queued" in shown
    for _ in range(2):
        yard.harness.keeper.run()
    why = "was given to node-1, which has not started it yet"
    assert why in run("operations", "--open").stdout
    again = run("checkpoints", "verify", "tiny@step-4").stdout
    assert again == f"verify of tiny@a1.step-4 is queued: {why}; `trainyard operations` shows it\n"


@pytest.mark.usefixtures("job")
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("checkpoints", "burn", "tiny@step-4"), "is neither a job nor an action"),
        (("checkpoints", "pin", "tiny"), "tiny is a job: name one of its checkpoints"),
        (("checkpoints", "delete", "tiny@step-4"), "There is no terminal for an answer: use --yes"),
    ],
)
def test_an_ambiguous_argument_is_explained(run: Run, given: tuple[str, ...], said: str) -> None:
    result = run(*given)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())


def test_a_job_is_deleted_with_its_checkpoints(yard: Yard, run: Run) -> None:
    job_id, (supervisor,) = yard.harness.running(step=9)
    yard.harness.commit_checkpoint(job_id, 4)
    supervisor.end("succeeded")
    result = run("delete", "tiny", "--checkpoints", "--yes")
    assert "its checkpoints are being deleted" in result.stdout
    assert "all of tiny" in run("operations").stdout


def test_every_kind_of_operation_has_a_word_for_its_success() -> None:
    assert DONE.keys() == set(OperationKind)
