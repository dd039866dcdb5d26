"""Calls of an engine: claimed before, adopted after, always reported."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from provisioner.api import ProvisionerApi
from provisioner.base import EngineListing, LoginNeeded, SourceError, Submission
from provisioner.engine_calls import EngineCalls, clean
from provisioner.request_folders import KEPT_SECONDS, RequestFolders, hashes
from provisioner.settings import SourceConfig
from tests.provisioner.provisioner_server import SOURCE_TOKEN, ProvisionerServer
from trainyard.base.ids import make_id
from trainyard.protocol.node_sources.messages import (
    EngineJob,
    RequestOrder,
    SourceMessage,
    SourceReport,
)

ID = make_id(milliseconds=1, entropy=bytes(10))
OTHER = make_id(milliseconds=2, entropy=bytes(10))
CONFIG = SourceConfig(
    name="pool",
    kind="slurm",
    slots=4,
    roots={"checkpoints": "/srv/checkpoints"},
    labels={"gpu": "a100"},
)


@dataclass
class FakeEngine:
    """An engine in memory."""

    jobs: dict[str, EngineJob] = field(default_factory=dict)
    submissions: list[Submission] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    error: Exception | None = None
    login: LoginNeeded | None = None
    lost: bool = False
    """Whether the answer to a submission is lost."""

    def submit(self, submission: Submission) -> str:
        self._fail()
        request_id = submission.request_id
        if request_id not in self.jobs:
            self.submissions.append(submission)
            self.jobs[request_id] = EngineJob(request_id=request_id, ref="7", state="pending")
        if self.lost:
            raise SourceError("no answer")
        return self.jobs[request_id].ref

    def list(self) -> EngineListing:
        self._fail()
        return EngineListing(tuple(self.jobs.values()), self.login)

    def status(self, request_ids: Sequence[str]) -> Sequence[EngineJob]:
        self._fail()
        return tuple(self.jobs[one] for one in request_ids if one in self.jobs)

    def cancel(self, request_id: str) -> None:
        self._fail()
        self.cancelled.append(request_id)

    def explain(self, request_id: str) -> str:
        self._fail()
        return "because\x1b[31m of Priority"

    def _fail(self) -> None:
        if self.error is not None:
            raise self.error


@dataclass
class Place:
    """One source, its engine and its server."""

    server: ProvisionerServer
    engine: FakeEngine
    folders: RequestFolders
    calls: EngineCalls
    folder: Path

    def call(self, call: str, request_id: str | None = ID) -> SourceReport:
        """Handle a message, and return the last report."""
        fields = {"source": "pool", "call": call, "request_id": request_id}
        self.calls.carry_out(SourceMessage.model_validate(fields))
        return self.server.reports[-1]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    server, engine, folders = ProvisionerServer(), FakeEngine(), RequestFolders(tmp_path)
    order = RequestOrder(
        request_id=ID, purpose="nodes", nodes=2, seconds=3600, wanted=True, urls=("http://a:1",)
    )
    server.orders[ID] = order
    with ProvisionerApi(server.url, SOURCE_TOKEN) as api:
        calls = EngineCalls(CONFIG, engine, folders=folders, api=api, url=server.url)
        yield Place(server, engine, folders, calls, tmp_path)
    server.close()


def test_a_request_is_claimed_with_its_hashes_and_then_submitted(place: Place) -> None:
    report = place.call("submit")
    assert [job.ref for job in report.jobs] == ["7"]
    assert (report.asked, report.error, report.complete) == (ID, None, False)
    (submission,) = place.engine.submissions
    assert stat.S_IMODE(submission.secrets.stat().st_mode) == 0o600
    assert place.server.claims[ID].secret_hashes == hashes(submission.secrets)
    assert len(hashes(submission.secrets)) == CONFIG.limits.nodes_per_request
    assert submission.shape.nodes == 2
    assert submission.environment["TRAINYARD_URL"] == "http://a:1"
    assert submission.environment["TRAINYARD_LABELS"] == "gpu=a100,source=pool"
    assert not any(secret in repr(submission) for secret in submission.secrets.read_text().split())


def test_a_doubled_message_claims_with_the_same_hashes_and_submits_once(place: Place) -> None:
    place.call("submit")
    report = place.call("submit")
    assert [job.ref for job in report.jobs] == ["7"]
    assert len(place.engine.submissions) == 1


def test_a_submission_whose_answer_was_lost_is_adopted(place: Place) -> None:
    place.engine.lost = True
    assert place.call("submit").error == "no answer"
    place.engine.lost = False
    assert [job.ref for job in place.call("submit").jobs] == ["7"]
    assert len(place.engine.submissions) == 1


def test_a_request_that_is_not_known_is_not_submitted(place: Place) -> None:
    message = SourceMessage(source="pool", call="submit", request_id=OTHER)
    place.calls.carry_out(message)
    assert place.engine.submissions == []
    assert place.server.reports == []


def test_a_request_that_is_withdrawn_before_its_submission_is_proved_to_have_no_job(
    place: Place,
) -> None:
    place.server.withdraw(ID)
    (job,) = place.call("submit").jobs
    assert (job.state, job.gone) == ("ended", True)
    assert place.engine.submissions == []


def test_a_job_that_the_engine_forgot_is_no_proof(place: Place) -> None:
    place.call("submit")
    place.engine.jobs.clear()
    assert place.call("status").jobs == ()
    place.server.withdraw(ID)
    assert place.call("cancel").jobs == ()
    assert place.engine.cancelled == [ID]


def test_a_cancellation_without_any_record_reaches_the_engine(place: Place) -> None:
    place.server.withdraw(OTHER)
    assert place.call("cancel", OTHER).jobs == ()
    assert place.engine.cancelled == [OTHER]


def test_a_message_alone_cancels_nothing(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    submitted = place.call("submit")
    assert place.call("cancel") == submitted  # whoever can write to the broker can send it
    assert place.call("cancel", OTHER) == submitted  # the server has no such request
    assert place.engine.cancelled == []
    assert f"request {ID} is wanted, and not cancelled" in caplog.text
    place.server.withdraw(ID)
    assert place.call("cancel").asked == ID
    assert place.engine.cancelled == [ID]


def test_a_listing_is_complete_and_cancels_what_the_reply_names(place: Place) -> None:
    place.call("submit")
    place.server.cancel = (ID,)
    place.call("list", None)
    listed, cancelled = place.server.reports[-2:]
    assert listed.complete
    assert [job.request_id for job in listed.jobs] == [ID]
    assert place.engine.cancelled == [ID]
    assert (cancelled.asked, cancelled.complete) == (ID, False)


def test_a_job_that_was_not_submitted_from_here_may_be_another_servers(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.engine.jobs[OTHER] = EngineJob(request_id=OTHER, ref="9", state="running")
    place.server.cancel = (OTHER,)
    place.call("list", None)
    assert place.engine.cancelled == []
    assert f"not submitted from here, and not cancelled: {OTHER}" in caplog.text
    place.server.withdraw(OTHER)
    place.call("cancel", OTHER)  # an order of the server's own, for a request that it has
    assert place.engine.cancelled == [OTHER]


def test_a_long_answer_comes_in_parts_of_which_the_last_is_complete(place: Place) -> None:
    ids = [make_id(milliseconds=10 + number, entropy=bytes(10)) for number in range(400)]
    for request_id in ids:
        job = EngineJob(request_id=request_id, ref="1", state="pending", reason="x" * 2000)
        place.engine.jobs[request_id] = job
    last = place.call("list", None)
    *first, _ = place.server.reports
    assert first
    assert not any(part.complete for part in first)
    assert last.complete
    assert [job.request_id for part in (*first, last) for job in part.jobs] == ids
    assert list(last.earlier) == [job.request_id for part in first for job in part.jobs]
    assert max(len(part.model_dump_json()) for part in place.server.reports) < 2**20


def test_a_claim_that_is_refused_is_shown_as_the_reason(place: Place) -> None:
    place.call("submit")
    shutil.rmtree(place.folder / "requests" / ID)  # and with it the secrets
    report = place.call("submit")
    assert report.asked == ID
    assert report.error is not None
    assert report.error.startswith("the server refuses the claim: ")
    assert not report.refused  # which would pause the source
    assert len(place.engine.submissions) == 1


def test_a_folder_that_cannot_be_written_is_reported(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("provisioner.request_folders.os.open", full)
        assert place.call("submit").error == (
            "the provisioner's folder: [Errno 28] No space left on device"
        )
    assert place.engine.submissions == []
    assert place.call("submit").error is None


@pytest.mark.parametrize("call", ["submit", "list", "status", "cancel", "explain"])
def test_an_error_of_the_engine_is_reported_and_proves_nothing(place: Place, call: str) -> None:
    place.folders.secrets(ID, count=8)
    place.folders.note_submission(ID)
    place.engine.error = SourceError("squeue did not end within 30 s")
    if call == "cancel":
        place.server.withdraw(ID)
    report = place.call(call, None if call == "list" else ID)
    assert report.error == "squeue did not end within 30 s"
    assert (report.jobs, report.complete, report.refused, report.needs_login) == (
        (),
        False,
        False,
        None,
    )


def test_a_refusal_and_a_needed_login_are_named(place: Place) -> None:
    place.engine.error = SourceError.refusal("Invalid account")
    assert place.call("submit").refused
    place.engine.error = LoginNeeded("denied", command="ssh -MNf login1")
    report = place.call("list", None)
    assert report.needs_login is not None
    assert report.needs_login.command == "ssh -MNf login1"
    assert not report.refused
    place.engine.error, place.engine.login = None, LoginNeeded("denied", command="ssh -MNf a")
    report = place.call("list", None)  # a listing of the other machines
    assert report.needs_login is not None
    assert (report.needs_login.command, report.complete, report.error) == ("ssh -MNf a", True, None)


def test_a_fault_of_our_own_is_reported_as_an_error(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.engine.error = RuntimeError("a bug")
    assert place.call("list", None).error == "RuntimeError: a bug"
    assert "a bug" in caplog.text


def test_an_explanation_is_free_of_control_characters(place: Place) -> None:
    assert place.call("explain").explanation == "because?[31m of Priority"
    assert clean("x" * 3000).endswith("x...")


@pytest.mark.parametrize("call", ["submit", "cancel", "status", "explain"])
def test_a_call_is_left_out_while_another_one_for_the_request_runs(place: Place, call: str) -> None:
    if call == "cancel":
        place.server.withdraw(ID)
    done = threading.Event()

    def carry_out() -> None:
        place.calls.carry_out(SourceMessage.model_validate(message))
        done.set()

    message = {"source": "pool", "call": call, "request_id": ID}
    caller = threading.Thread(target=carry_out)
    with place.folders.locked(ID):  # like an installation, for an hour
        caller.start()
        is_left_out = done.wait(10)
    caller.join()
    assert is_left_out
    assert place.server.reports == []
    assert place.call(call).asked == ID  # the server repeats it


def test_a_listing_cancels_later_what_is_being_submitted(place: Place) -> None:
    place.call("submit")
    place.server.cancel = (OTHER, ID)
    place.folders.secrets(OTHER, count=1)
    place.folders.note_submission(OTHER)
    with place.folders.locked(OTHER):
        place.call("list", None)
    assert place.engine.cancelled == [ID]
    place.call("list", None)
    assert place.engine.cancelled == [ID, OTHER, ID]


def test_old_folders_go_when_the_engine_no_longer_lists_their_jobs(place: Place) -> None:
    old = time.time() - KEPT_SECONDS - 60
    for request_id in (ID, OTHER):
        place.folders.secrets(request_id, count=1)
        os.utime(place.folder / "requests" / request_id, (old, old))
    place.engine.jobs[ID] = EngineJob(request_id=ID, ref="1", state="pending")
    place.call("list", None)
    assert (place.folder / "requests" / ID / "secrets").exists()
    assert not (place.folder / "requests" / OTHER).exists()
    with place.folders.locked(OTHER):
        pass


def test_the_folder_of_a_request_that_is_claimed_again_and_again_stays(place: Place) -> None:
    place.engine.error = SourceError("slurmctld is away")
    place.call("submit")
    secrets = (place.folder / "requests" / ID / "secrets").read_text()
    old = time.time() - KEPT_SECONDS - 60
    os.utime(place.folder / "requests" / ID, (old, old))
    place.call("submit")
    place.engine.error = None
    place.call("list", None)
    assert (place.folder / "requests" / ID / "secrets").read_text() == secrets
