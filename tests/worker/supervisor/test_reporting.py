"""Reports through outages, lost replies and refusals: every byte once, in order."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from server.api.http.request_body import parse_json
from tests.worker.conftest import SECONDS, Attempt, Place, wait_for
from trainyard.base.ids import make_id
from trainyard.protocol.record_parser import parse_record
from trainyard.protocol.states import DesiredState
from trainyard.protocol.worker_messages import MAX_REPORT_BYTES, PendingRequest, Report, ReportReply
from trainyard.run.control_files import write_answer
from trainyard.run.directory import Phase
from trainyard.run.fact_types.fact_records import RunFacts
from trainyard.run.record_base import to_plain
from trainyard.run.record_files import replace_record
from trainyard.run.records import Provenance, Request, RequestAnswer
from worker.launch import prepare_run
from worker.node.files import read_record
from worker.node.node_store import LaunchRecord
from worker.node.process_identity import own_identity
from worker.supervisor import reporter
from worker.supervisor.exit_classification import Findings
from worker.supervisor.orders import Orders
from worker.supervisor.spool import Spool


def assert_everything_arrived(attempt: Attempt) -> None:
    """Check that the server stored the files' contents: nothing lost, doubled or out of order."""
    for rank in (0, 1):
        log = attempt.seen.files[f"log:{rank}"]
        assert log == Path(attempt.run.log(rank)).read_bytes()
        numbers = [int(n) for n in re.findall(rb"line (\d+) ", log)]
        assert numbers == list(range(1, len(numbers) + 1))
    assert attempt.seen.files["metrics"] == Path(attempt.run.metrics).read_bytes()


def test_an_outage_costs_no_byte(place: Place) -> None:
    attempt = place.start(stand_in="chatter")
    wait_for(lambda: attempt.log(1), "output")
    place.server.close()
    log = Path(attempt.run.log(0))
    before = log.stat().st_size
    wait_for(lambda: log.stat().st_size > before + 200_000, "output while the server is away")
    reports = len(attempt.seen.reports)
    place.server.open()
    wait_for(lambda: len(attempt.seen.reports) > reports + 2, "reports")
    attempt.seen.desired = DesiredState.STOP
    assert attempt.exit().outcome == "stopped"
    assert_everything_arrived(attempt)
    assert attempt.seen.duplicated_bytes == 0


def test_the_end_is_reported_after_an_outage(place: Place) -> None:
    attempt = place.start(stand_in="chatter")
    wait_for(lambda: attempt.log(), "output")
    place.server.close()
    (attempt.run.root / "stop").touch()
    wait_for((attempt.run.root / "exit.json").exists, "exit record on the node")
    assert attempt.processes == []
    assert attempt.seen.exit is None
    place.server.open()
    assert attempt.exit().outcome == "stopped"
    assert_everything_arrived(attempt)


def test_a_lost_reply_costs_nothing(place: Place) -> None:
    attempt = place.start(stand_in="chatter")
    wait_for(lambda: attempt.log(), "output")
    for _ in range(3):
        place.server.lose_replies = 1
        wait_for(lambda: place.server.lose_replies == 0, "report")
    attempt.seen.desired = DesiredState.STOP
    attempt.exit()
    assert_everything_arrived(attempt)
    assert attempt.seen.duplicated_bytes > 0  # sent again, stored once


def test_the_server_may_come_back_elsewhere(place: Place) -> None:
    attempt = place.start(stand_in="chatter")
    wait_for(lambda: attempt.log(), "output")
    place.server.close()
    place.server.move()
    place.server.open()
    place.node.remember_server(place.server.url)
    reports = len(attempt.seen.reports)
    wait_for(lambda: len(attempt.seen.reports) > reports, "report at the new address")
    attempt.seen.desired = DesiredState.STOP
    attempt.exit()
    assert_everything_arrived(attempt)


def test_a_stranger_at_the_address_of_the_server_ends_nothing(place: Place) -> None:
    attempt = place.start(stand_in="chatter")
    wait_for(lambda: attempt.log(), "output")
    before = len(attempt.seen.reports)
    known, place.server.attempts = place.server.attempts, {}  # it answers 401 from now on
    log = attempt.run.supervisor_log
    wait_for(lambda: log.read_text().count("spooling: 401") > 1, "refusals")
    place.server.attempts = known
    wait_for(lambda: len(attempt.seen.reports) > before + 1, "reports")
    attempt.seen.desired = DesiredState.STOP
    assert attempt.exit().outcome == "stopped"
    assert_everything_arrived(attempt)


def prepared(place: Place) -> tuple[Attempt, reporter.Reporter, Orders]:
    """Return an attempt without processes, with its reporter and orders."""
    attempt = place.attempt(place.grant())
    prepare_run(place.local, attempt.id, attempt.seen.claim)
    launch = read_record(attempt.run.launch, LaunchRecord)
    assert launch is not None
    orders, spool = Orders(attempt.run, leads=True), Spool(attempt.run, ranks=range(2))
    reporting = reporter.Reporter(
        attempt.run, launch, identity=own_identity(), orders=orders, spool=spool
    )
    return attempt, reporting, orders


def test_a_server_that_insists_on_not_knowing_an_attempt_is_believed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter, "UNKNOWN_SECONDS", 0.5)
    _, reporting, orders = prepared(place)
    place.server.attempts.clear()
    started = time.monotonic()
    reporting.report_until_over()
    assert orders.outrun
    assert time.monotonic() - started >= 0.5


def test_logs_hold_to_their_limit_while_reports_bring_no_chunks(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter, "UNKNOWN_SECONDS", 0.5)
    attempt = place.attempt(place.grant())
    prepare_run(place.local, attempt.id, attempt.seen.claim)
    launch = read_record(attempt.run.launch, LaunchRecord)
    assert launch is not None
    Path(attempt.run.provenance).write_text(json.dumps(to_plain(PROVENANCE)))
    log, kept, held = Path(attempt.run.log(0)), 16 * 1024, 128 * 1024
    log.write_bytes(b"x" * (held + kept))
    place.server.attempts.clear()
    orders = Orders(attempt.run, leads=True)
    spool = Spool(attempt.run, ranks=range(2), log_kept_bytes=kept, log_held_bytes=held)
    reporter.Reporter(
        attempt.run, launch, identity=own_identity(), orders=orders, spool=spool
    ).report_until_over()
    assert log.read_bytes() == b"\0" * kept + b"x" * held


def test_a_server_that_lost_bytes_gets_them_again(place: Place) -> None:
    attempt = place.start(stand_in="chatter")
    wait_for(lambda: len(attempt.log()) > 10_000, "output")
    with place.server.lock:  # restored from an older copy
        attempt.seen.files["log:0"] = attempt.seen.files["log:0"][:5000]
    attempt.seen.desired = DesiredState.STOP
    attempt.exit()
    assert_everything_arrived(attempt)


def test_refused_content_keeps_neither_lease_nor_exit_from_the_server(place: Place) -> None:
    place.server.refuse_content = True
    attempt = place.start(stand_in="chatter")
    attempt.phase(Phase.TRAINING)
    attempt.seen.desired = DesiredState.STOP
    assert attempt.exit().outcome == "stopped"
    assert attempt.log() == ""


def test_one_unreadable_line_holds_nothing_up(place: Place) -> None:
    place.server.unreadable = b"{torn"
    attempt = place.start(stand_in="chatter")
    metrics = Path(attempt.run.metrics)
    wait_for(lambda: metrics.exists() and metrics.stat().st_size > 500, "metrics")
    place.server.close()  # so that the line comes among many others
    with metrics.open("ab") as file:
        file.write(b"{torn\n")
    size = metrics.stat().st_size
    wait_for(lambda: metrics.stat().st_size > size + 500, "more metrics")
    place.server.open()
    wait_for(lambda: len(attempt.seen.files["metrics"]) > size + 500, "what follows the line")
    attempt.seen.desired = DesiredState.STOP
    attempt.exit()
    assert_everything_arrived(attempt)


PROVENANCE = Provenance(
    git_commit=None,
    git_diff="",
    git_diff_truncated=False,
    packages={"torch": "2.13"},
    python="3.11",
    torch="2.13",
    cuda=None,
    cuda_driver=None,
    nccl=None,
    host="node-1",
    platform="Linux",
    cpu_count=2,
    gpus=(),
)


def report_all(place: Place, provenance: Mapping[str, object], facts: str | None = None) -> Attempt:
    """Report one metric line, this provenance, these facts and an exit; return the attempt."""
    attempt, reporting, _ = prepared(place)
    Path(attempt.run.metrics).write_bytes(METRIC)
    Path(attempt.run.provenance).write_text(json.dumps(provenance))
    if facts is not None:
        Path(attempt.run.facts).write_text(facts)
    reporting.finish(Findings(node=place.local.name, outrun=True))
    thread = threading.Thread(target=reporting.report_until_over, daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert attempt.seen.exit is not None
    return attempt


METRIC = b'{"step": 1, "time": 1.0, "values": {"train/loss": 1.0}}\n'


def test_a_refused_provenance_is_left_out_and_costs_no_metrics(place: Place) -> None:
    place.server.refuse_provenance = True
    attempt = report_all(place, to_plain(PROVENANCE))
    assert attempt.seen.files["metrics"] == METRIC
    assert not any(report.provenance for report in attempt.seen.reports)


def test_a_provenance_is_made_storable_and_fits_into_a_report(place: Place) -> None:
    diff = "a\0b" + "x" * 8_000_000
    attempt = report_all(place, to_plain(PROVENANCE) | {"git_diff": diff})
    assert attempt.seen.files["metrics"] == METRIC
    (report,) = (report for report in attempt.seen.reports if report.provenance)
    body = report.model_dump_json().encode()
    assert len(body) < MAX_REPORT_BYTES
    assert parse_json(Report, body).provenance == report.provenance


def wait_for_reports(attempt: Attempt, more: int) -> None:
    seen = len(attempt.seen.reports)
    wait_for(lambda: len(attempt.seen.reports) >= seen + more, "reports")


FACTS = '{"config": {"lr": 0.1}, "summary": {"best": 2}, "tags": ["x"]}'


def test_facts_are_reported_before_the_exit(place: Place) -> None:
    place.server.lose_replies = 1
    attempt = report_all(place, to_plain(PROVENANCE), FACTS)
    assert attempt.seen.files["metrics"] == METRIC
    found = [report.facts for report in attempt.seen.reports if report.facts]
    assert found[-1] == parse_record(RunFacts, FACTS)
    assert len(found) <= 2  # once more where the reply was lost


def test_refused_facts_are_left_out_and_cost_nothing(place: Place) -> None:
    place.server.refuse_facts = True
    attempt = report_all(place, to_plain(PROVENANCE), FACTS)
    assert attempt.seen.files["metrics"] == METRIC
    assert not any(report.facts for report in attempt.seen.reports)


@pytest.mark.parametrize(
    "facts",
    ["{", "[" * 100_000, '{"config": {"a": %s}}' % ("9" * 5000), '{"x": 1}', "x" * 500_000],
    ids=["torn", "nested", "endless", "unknown", "large"],
)
def test_facts_that_are_none_are_not_reported(place: Place, facts: str) -> None:
    attempt = report_all(place, to_plain(PROVENANCE), facts)
    assert attempt.seen.files["metrics"] == METRIC
    assert not any(report.facts for report in attempt.seen.reports)


def test_facts_that_change_are_reported_apart_in_time(place: Place) -> None:
    attempt = place.start(stand_in="chatter")
    wait_for(lambda: attempt.log(), "output")
    for number in range(20):
        replace_record(attempt.run.facts, RunFacts(summary={"best": number}))
        wait_for_reports(attempt, 1)
    attempt.seen.desired = DesiredState.STOP
    attempt.exit()
    found = [report.facts.summary["best"] for report in attempt.seen.reports if report.facts]
    assert found[-1] == 19  # the last ones come with the end
    assert len(found) <= 4


def test_requests_are_passed_on_and_answered_once(place: Place) -> None:
    attempt = place.start(stand_in="chatter")
    wait_for(lambda: attempt.log(), "output")
    request_id = make_id(milliseconds=1, entropy=bytes(10))
    evil = PendingRequest(id="../../stop", request=Request(kind="save"))
    attempt.seen.requests = [PendingRequest(id=request_id, request=Request(kind="save")), evil]
    wait_for(lambda: attempt.seen.answers, "answer")
    answer = attempt.seen.answers[request_id]
    assert answer.ok
    assert parse_record(Request, answer.message).kind == "save"
    count = sum(request_id in report.answers for report in attempt.seen.reports)
    attempt.seen.desired = DesiredState.STOP
    attempt.exit()
    assert count == 1 == sum(request_id in report.answers for report in attempt.seen.reports)
    written = sorted(path.name for path in Path(attempt.run.requests).iterdir())
    assert written == [f"{request_id}.answer.json", f"{request_id}.json"]


def test_answers_beyond_one_report_come_with_the_next(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter, "MAX_ANSWERS", 2)
    attempt, reporting, orders = prepared(place)
    Path(attempt.run.requests).mkdir(exist_ok=True)
    ids = [make_id(milliseconds=number, entropy=bytes(10)) for number in range(1, 6)]
    for each in ids:
        write_answer(attempt.run, each, RequestAnswer(ok=True, message="saved", step=1))
    thread = threading.Thread(target=reporting.report_until_over)
    thread.start()
    try:
        wait_for(lambda: len(attempt.seen.reports) > 3, "reports")
    finally:
        orders.give_way()
        thread.join()
    assert {*attempt.seen.answers} == {*ids}
    assert max(len(report.answers) for report in attempt.seen.reports) == 2


def test_reports_keep_the_lease_while_nothing_is_new(place: Place) -> None:
    attempt = place.start(stand_in="sleep")
    attempt.phase(Phase.TRAINING)
    seen, started = len(attempt.seen.reports), time.monotonic()
    wait_for(lambda: len(attempt.seen.reports) > seen + 10, "reports")
    assert time.monotonic() - started > 10 * 0.05  # no busy loop: 0.1 s apart
    attempt.seen.desired = DesiredState.CANCEL
    attempt.exit()


def test_an_endless_log_does_not_hold_up_the_exit(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter, "DRAIN_SECONDS", 0.2, raising=False)
    attempt, reporting, orders = prepared(place)
    with Path(attempt.run.log(0)).open("wb") as log:
        log.truncate(2**40)
    reporting.finish(Findings(node=place.local.name, outrun=True))
    thread = threading.Thread(target=reporting.report_until_over)
    thread.start()
    thread.join(SECONDS)
    late = thread.is_alive()
    orders.give_way()
    thread.join()
    assert not late
    assert attempt.seen.exit is not None


def test_an_order_to_stop_goes_through_no_link(place: Place, tmp_path: Path) -> None:
    attempt = place.attempt(place.grant())
    run = prepare_run(place.local, attempt.id, attempt.seen.claim)
    elsewhere = tmp_path / "elsewhere"
    Path(run.stop).symlink_to(elsewhere)
    Orders(run, leads=True).obey(ReportReply(acknowledged={}, desired=DesiredState.STOP))
    assert not elsewhere.exists()


def test_a_preemption_that_cannot_be_written_is_repeated(place: Place) -> None:
    attempt = place.attempt(place.grant())
    run = prepare_run(place.local, attempt.id, attempt.seen.claim)
    orders = Orders(run, leads=True)
    aside = run.root.rename(run.root.with_name("aside"))  # as a disk that is full
    orders.preempt()
    assert orders.leave
    aside.rename(run.root)
    orders.obey(ReportReply(acknowledged={}, desired=DesiredState.RUN))
    assert Path(run.stop).exists()
