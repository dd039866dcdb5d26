"""The deadline of a notice for the processes, from the notice to the order to stop."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.worker.conftest import Place
from trainyard.protocol.states import DesiredState
from trainyard.protocol.worker_messages import ReportReply
from trainyard.run.control_files import should_stop, stop_deadline
from worker.launch import prepare_run
from worker.node.node_store import NodeStore
from worker.supervisor.orders import LAST_REPORT_SECONDS, Orders
from worker.supervisor.preemption import read_deadline

LATER = 1_900_000_000.0


@pytest.mark.parametrize(
    ("text", "deadline"),
    [
        ("taken back\n1800000000.5\n", 1_800_000_000.5),
        ("its allocation ends\nend\n", LATER),
        ("", None),
        ("why\n\n", None),
        ("why\nsoon\n", None),
        ("why\ninf\n", None),
    ],
)
def test_the_second_line_of_a_notice_is_its_deadline(
    tmp_path: Path, text: str, deadline: float | None
) -> None:
    notice = tmp_path / "notice"
    notice.write_text(text)
    absent = tmp_path / "absent"
    assert read_deadline([absent, notice], usual_seconds=None, end=LATER) == deadline
    if deadline is None:
        begin = time.time()
        found = read_deadline([notice], usual_seconds=30, end=LATER)
        assert found is not None
        assert begin + 30 <= found <= time.time() + 30
    assert read_deadline([absent], usual_seconds=30, end=LATER) is None


def test_the_deadline_reaches_the_order_to_stop(place: Place) -> None:
    attempt = place.attempt(place.grant())
    run = prepare_run(place.local, attempt.id, attempt.seen.claim)
    node = NodeStore(place.node.data_dir)
    orders = Orders(run, leads=True, deadline=node.deadline)
    orders.obey(ReportReply(acknowledged={}, desired=DesiredState.STOP))
    assert should_stop(run)
    assert stop_deadline(run) is None  # a person's order has none
    node.set_deadline(LATER)
    orders.preempt()
    assert stop_deadline(run) == LATER
    node.set_deadline(LATER - 1)
    orders.obey(ReportReply(acknowledged={}, desired=DesiredState.RUN))
    assert stop_deadline(run) == LATER - 1
    node.set_deadline(None)
    assert node.deadline() is None


def test_a_cancel_and_a_notice_limit_the_time_for_uploads(place: Place) -> None:
    attempt = place.attempt(place.grant())
    run = prepare_run(place.local, attempt.id, attempt.seen.claim)
    stopped = Orders(run, leads=True)
    stopped.obey(ReportReply(acknowledged={}, desired=DesiredState.STOP))
    assert stopped.uploads_until(30) is None
    before = time.time()
    stopped.obey(ReportReply(acknowledged={}, desired=DesiredState.CANCEL))
    until = stopped.uploads_until(30)
    assert until is not None
    assert before + 30 <= until <= time.time() + 30
    stopped.preempt()
    assert stopped.uploads_until(30) == until  # the first order counts
    node = NodeStore(place.node.data_dir)
    node.set_deadline(before + 10)
    noticed = Orders(run, leads=True, deadline=node.deadline)
    noticed.preempt()
    assert noticed.uploads_until(30) == before + 10 - LAST_REPORT_SECONDS
