"""Run directories are removed some time after attempt and job end, and nothing else is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.other_users import needs_root, open_folder
from tests.worker.conftest import Place, wait_for
from tests.worker.nested_folders import nest
from trainyard.protocol.rest.common import ProblemDetails
from trainyard.protocol.rest.errors import ApiError
from trainyard.protocol.worker_messages import EndedJobsReply, EndedJobsRequest
from worker.api import ServerAway
from worker.node import folder_usage
from worker.node.folder_usage import remove_all_but, remove_tree
from worker.node.node_store import NodeStore, WorkerRun
from worker.upkeep import run_cleaner
from worker.upkeep.run_cleaner import DAY_SECONDS, RunCleaner

STRANGER = 12_345
"""Id of a user that is not root."""
ATTEMPT = "01kdvdna005x164m7fvjce2b6h"
JOB, OTHER = "01kdvdna005x164m7fvjce2b60", "01kdvdna005x164m7fvjce2b61"


class EndedJobs:
    """The server's answer about ended jobs."""

    def __init__(self, *ended: str, error: Exception | None = None) -> None:
        self.ended = ended
        self.error = error
        self.asked: list[str] = []

    def __enter__(self) -> EndedJobs:
        return self

    def __exit__(self, *_: object) -> None: ...

    def ended_jobs(self, request: EndedJobsRequest) -> EndedJobsReply:
        self.asked += request.jobs
        if self.error is not None:
            raise self.error
        return EndedJobsReply(ended=self.ended)


def cleaner(store: NodeStore, answer: EndedJobs, *, days: float = 7.0) -> RunCleaner:
    return RunCleaner(store, "node-1", days=days, connect=lambda: answer)  # type: ignore[arg-type,return-value]


def add_run(store: NodeStore, job: str = JOB, attempt: int = 1, *, days: float = 8.0) -> WorkerRun:
    """Make the run directory of an attempt that ended some days ago."""
    run = store.run(job, attempt)
    Path(run.logs).mkdir(parents=True)
    run.log(0).write_text("line\n")
    for path in (run.launch, run.exit, run.over):
        path.write_text("{}")
    age(run, days)
    return run


def age(run: WorkerRun, days: float) -> None:
    for path in (run.launch, run.exit, run.over, run.root):
        if path.exists():
            at = path.stat().st_mtime - days * DAY_SECONDS
            os.utime(path, (at, at))


@pytest.fixture
def store(tmp_path: Path) -> NodeStore:
    return NodeStore(tmp_path / "node")


def test_a_run_directory_goes_with_its_empty_folder_of_the_job(store: NodeStore) -> None:
    first, second = add_run(store), add_run(store, attempt=2, days=1)
    other = add_run(store, OTHER)
    assert cleaner(store, EndedJobs(JOB, OTHER)).clean() == 2
    assert (first.root.exists(), second.root.exists()) == (False, True)
    assert [path.name for path in store.runs.iterdir()] == [JOB]
    assert not other.root.exists()


def test_one_stays_until_its_job_has_ended(store: NodeStore) -> None:
    runs, answer = add_run(store), EndedJobs(OTHER)
    assert cleaner(store, answer).clean() == 0
    assert (runs.root.exists(), answer.asked) == (True, [JOB])


@pytest.mark.parametrize("file", ["root", "launch", "exit", "over"])
def test_one_stays_for_days_after_the_last_thing_that_happened(store: NodeStore, file: str) -> None:
    run, answer = add_run(store), EndedJobs(JOB)
    os.utime(getattr(run, file))
    assert cleaner(store, answer).clean() == 0
    assert answer.asked == []
    age(run, 8)
    assert cleaner(store, answer).clean() == 1


def test_one_stays_while_its_attempt_has_something_to_deliver(store: NodeStore) -> None:
    run, answer = add_run(store), EndedJobs(JOB)
    lock = store.lock(ATTEMPT, create=True)
    assert lock is not None
    with lock:
        lock.lead_to(run)
    # Its supervisor is dead, and no reporter has started yet.
    assert cleaner(store, answer).clean() == 0
    assert run.log(0).read_text() == "line\n"
    lock = store.lock(ATTEMPT)
    assert lock is not None
    with lock:
        lock.forget()
    assert cleaner(store, answer).clean() == 1


NO_ROUTE = ProblemDetails(title="Not Found", status=404, detail="no such path", request_id="r")


@pytest.mark.parametrize("error", [ServerAway("away"), ApiError(NO_ROUTE)])
def test_nothing_goes_without_an_answer_of_the_server(store: NodeStore, error: Exception) -> None:
    run = add_run(store)
    with pytest.raises(type(error)):
        cleaner(store, EndedJobs(JOB, error=error)).clean()
    assert run.root.exists()


def test_folders_of_operations_that_failed_go_after_the_days(store: NodeStore) -> None:
    of_one = store.data_dir / "operations" / ATTEMPT
    for fence, days in (("1", 8.0), ("2", 6.0)):
        folder = of_one / fence
        folder.mkdir(parents=True)
        file = folder / "operation.log"
        file.write_text("permission denied\n")
        for path in (file, folder):
            at = path.stat().st_mtime - days * DAY_SECONDS
            os.utime(path, (at, at))
    add_run(store)
    away = cleaner(store, EndedJobs(error=ServerAway("away")))
    with pytest.raises(ServerAway):  # which is not needed for these
        away.clean()
    assert [path.name for path in of_one.iterdir()] == ["2"]
    cleaner(store, EndedJobs(), days=5.0).clean()
    assert not of_one.exists()


def test_what_could_not_be_removed_is_named_and_tried_again(
    store: NodeStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    left = store.runs / f"{run_cleaner.REMOVED}1"
    left.mkdir(parents=True)
    monkeypatch.setattr(run_cleaner, "remove_tree", lambda path: False)
    cleaner(store, EndedJobs()).clean()
    assert f"{left} is not removed; tried again in 600 s" in caplog.text
    monkeypatch.undo()
    cleaner(store, EndedJobs()).clean()
    assert not left.exists()


@pytest.mark.parametrize("name", ["notes", "x" * 120, os.fsdecode(b"bad\xff"), "Ⅷ", ".hidden"])
def test_a_folder_that_is_no_job_stays_and_stops_no_other(store: NodeStore, name: str) -> None:
    run, other = add_run(store), add_run(store, name)
    answer = EndedJobs(JOB, name)
    assert cleaner(store, answer).clean() == 1
    assert answer.asked == [JOB]
    assert (run.root.exists(), other.root.exists()) == (False, True)


def test_a_folder_is_opened_through_no_link(tmp_path: Path) -> None:
    """A process of the user may swap it while the cleaner walks."""
    outside = tmp_path / "outside"
    (outside / "inner").mkdir(parents=True)
    top = tmp_path / "top"
    top.mkdir()
    (top / "link").symlink_to(outside)
    for parts in [("link",), ("link", "inner")]:
        with pytest.raises(NotADirectoryError), folder_usage._opened(top, parts):
            pass
    for folder in (outside / "inner", outside):
        folder.chmod(0)
    folder_usage._open_all(top)
    assert outside.stat().st_mode & 0o777 == 0
    outside.chmod(0o700)


def test_no_link_is_followed(store: NodeStore, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    inner = add_run(NodeStore(outside)).root
    run = add_run(store)
    (run.root / "link").symlink_to(outside)
    (run.root / "loop").symlink_to(run.root)
    (run.root / "file").symlink_to(inner / "launch.json")
    store.run(JOB, 7).root.symlink_to(inner)
    (store.runs / OTHER).symlink_to(inner.parent)
    age(run, 8)
    assert cleaner(store, EndedJobs(JOB, OTHER), days=0).clean() == 1
    assert (inner / "launch.json").read_text() == "{}"
    assert (inner / "logs" / "rank-0.log").read_text() == "line\n"
    assert sorted(path.name for path in store.runs.iterdir()) == [JOB, OTHER]
    assert store.run(JOB, 7).root.is_symlink()


@needs_root
def test_the_times_of_files_of_other_users_do_not_count(store: NodeStore) -> None:
    run = add_run(store)
    os.utime(run.over, (2**32, 2**32))
    os.chown(run.over, STRANGER, STRANGER)
    assert cleaner(store, EndedJobs(JOB)).clean() == 1


def test_a_round_is_bounded_and_goes_on_after_one_that_was_cut_off(
    store: NodeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_cleaner, "MAX_REMOVED", 2)
    monkeypatch.setattr(run_cleaner, "MAX_ASKED", 2)
    jobs = [f"{JOB[:-1]}{number}" for number in range(5)]
    for number in range(5):
        add_run(store, jobs[number])
    half = store.runs / ".removed-before"
    (half / "logs").mkdir(parents=True)
    answer = EndedJobs(*jobs)
    made = cleaner(store, answer)
    assert [made.clean() for _ in range(4)] == [2, 2, 1, 0]
    assert list(store.runs.iterdir()) == []


@pytest.mark.parametrize("length", [1, 40])
def test_folders_of_any_depth_go(tmp_path: Path, length: int) -> None:
    """Short names exceed Python's recursion limit, long ones the length limit of a path."""
    for remove in (remove_tree, lambda folder: remove_all_but(folder, (), ())):
        top = tmp_path / "top"
        top.mkdir()
        nest(top, length=length)
        remove(top)
        assert len(list(top.rglob("*"))) < 10
        remove_tree(top)
        assert not top.exists()


@needs_root
def test_folders_that_were_closed_go_also_without_root() -> None:
    with open_folder() as place:
        os.chown(place, STRANGER, STRANGER)
        child = os.fork()
        if child == 0:
            os._exit(remove_closed_folders(place / "top"))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def remove_closed_folders(top: Path) -> int:
    """Make and remove folders as a user that is not root; return the status of the process."""
    try:
        os.setgroups([])
        os.setresgid(STRANGER, STRANGER, STRANGER)
        os.setresuid(STRANGER, STRANGER, STRANGER)
        inner = top / "closed" / "inner"
        inner.mkdir(parents=True)
        (inner / "file").touch()
        for folder in (inner, inner.parent):
            folder.chmod(0)
        remove_tree(top)
        return 1 if top.exists() else 0
    except BaseException:  # noqa: BLE001 - the parent sees the status
        return 2


def test_an_attempt_that_was_reported_is_marked_as_over(place: Place) -> None:
    attempt = place.start(stand_in="succeed", ranks=1)
    made = cleaner(place.node, EndedJobs(attempt.seen.claim.attempt.job_id), days=0)
    assert made.clean() == 0
    assert attempt.exit().outcome == "succeeded"
    wait_for(lambda: not place.node.live() or None, "the end of the supervisor")
    assert attempt.run.over.exists()
    assert made.clean() == 1
    assert not attempt.run.root.exists()
