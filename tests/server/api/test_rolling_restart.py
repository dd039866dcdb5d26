"""API servers are replaced one by one while supervisors report."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from server.core.context import Context
from server.core.database.engine import Database
from server.core.settings import Settings
from server.core.visibility.scope import SYSTEM_SCOPE
from server.telemetry.logs.pages import page
from server.telemetry.metrics.csv import csv_rows
from tests.server.api.processes import api
from tests.server.api.serving import PATIENCE
from tests.server.clock import FakeClock
from tests.server.harness import Harness, Supervisor
from tests.server.reports import chunk, metric_lines
from trainyard.protocol.worker_messages import PROTOCOL, Chunk, Report


class ReportingSupervisor:
    """Reports steps and lines of output one by one, to whichever server answers."""

    def __init__(self, urls: list[str], supervisor: Supervisor) -> None:
        self._urls = urls
        self._supervisor = supervisor
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        token = supervisor.reply.attempt_token
        headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        self._client = httpx.Client(headers=headers, timeout=PATIENCE)
        self._turn = 0
        self.steps = 0
        self.repeated = 0
        """Reports without an answer, which were sent again."""

    def start(self) -> None:
        """Start to report."""
        self._thread.start()

    def pass_steps(self, count: int) -> None:
        """Wait until a number of further steps is reported."""
        last, deadline = self.steps + count, time.monotonic() + PATIENCE
        while self.steps < last:
            assert time.monotonic() < deadline, f"step {self.steps} is the last one reported"
            time.sleep(0.01)

    def finish(self) -> None:
        """Stop after the present step."""
        self._over.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "its last report got no answer"
        self._client.close()

    def _run(self) -> None:
        metrics = output = 0
        while not self._over.is_set():
            step = self.steps + 1
            line, text = metric_lines(step, step), f"step {step}\n".encode()
            chunks = chunk("metrics", line, start=metrics), chunk("log:0", text, start=output)
            metrics, output = metrics + len(line), output + len(text)
            self._send(*chunks, expected={"metrics": metrics, "log:0": output})
            self.steps = step

    def _send(self, *chunks: Chunk, expected: dict[str, int]) -> None:
        fields = {"protocol": PROTOCOL, "node": self._supervisor.node}
        identity = self._supervisor.identity
        body = Report.model_validate(
            fields | {"identity": identity, "chunks": chunks}
        ).model_dump_json()
        path = f"/api/v1/workers/attempts/{self._supervisor.attempt_id}/report"
        while True:
            self._turn += 1  # like a load balancer with an outdated health check
            url = self._urls[self._turn % len(self._urls)]
            try:
                reply = self._client.post(url + path, content=body)
            except httpx.TransportError:
                self.repeated += 1
                time.sleep(0.05)
                continue
            assert reply.status_code == 200, reply.text
            assert reply.json()["acknowledged"] == expected
            return


@pytest.mark.slow
def test_no_point_is_lost_or_doubled_while_servers_are_replaced(
    postgres_database: Callable[[], AbstractContextManager[str]],
    tmp_path: Path,
    clock: FakeClock,
) -> None:
    with ExitStack() as running, postgres_database() as url:
        database = Database(url)
        running.callback(database.dispose)
        context = Context(Settings(database_url=url, state_dir=tmp_path), database, clock)
        context.secrets.create()
        harness = Harness(context, clock)
        harness.add_node()
        jobs = [harness.launched(training={"steps": 10**6}) for _ in range(2)]
        first = running.enter_context(ExitStack())
        one, process = first.enter_context(api(tmp_path, DATABASE_URL=url))
        two, other = running.enter_context(api(tmp_path, DATABASE_URL=url))
        urls = [one, two]
        reporting = [ReportingSupervisor(urls, supervisor) for _, (supervisor,) in jobs]
        with all_reporting(reporting) as pass_steps:
            pass_steps(20)
            process.terminate()
            assert process.wait(PATIENCE) == 0, "it answers what it has begun, and ends"
            pass_steps(20)
            urls[0] = running.enter_context(api(tmp_path, DATABASE_URL=url))[0]
            pass_steps(20)
            other.kill()
            pass_steps(20)
        for (job_id, _), sender in zip(jobs, reporting, strict=True):
            assert sender.repeated > 0, "no report met a server that was gone"
            steps = list(range(1, sender.steps + 1))
            rows = "".join(
                csv_rows(context, job_id, ["train/loss"], scope=SYSTEM_SCOPE)
            ).splitlines()[1:]
            assert [int(row.split(",")[1]) for row in rows] == steps
            assert output(context, job_id) == [f"step {step}" for step in steps]


def output(context: Context, job_id: str) -> list[str]:
    """Return the whole output of rank 0."""
    lines: list[str] = []
    while more := page(context, job_id, from_line=len(lines), scope=SYSTEM_SCOPE).lines:
        lines += [line.text for line in more]
    return lines


@contextmanager
def all_reporting(reporting: Sequence[ReportingSupervisor]) -> Iterator[Callable[[int], None]]:
    """Let all report during a block; yield a function that waits for further steps of each."""
    for sender in reporting:
        sender.start()

    def pass_steps(count: int) -> None:
        for sender in reporting:
            sender.pass_steps(count)

    try:
        yield pass_steps
    finally:
        for sender in reporting:
            sender.finish()
