"""Time from a report to its frame at each of many clients of the stream, and their cost.

The API runs in separate processes and the clients in another one, each with a connection that gets
every change of every job. Supervisors report a step every half second. The time of a frame is from
the due time of its report to the read of the frame. One client in ten parses its frames; the others
only read the bytes, because the clients share the machine with the server. A supervisor sends no
report before the former one is answered, so that late answers delay all later frames; therefore the
times of reports are printed too.

    python -m benchmarks.control_plane.stream_clients [--clients 1000] [--api-processes 1]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection as Pipe
from urllib.parse import urlsplit

from benchmarks.control_plane.capacity.load import Connection, Lane
from benchmarks.control_plane.capacity.runs import Run, spent
from benchmarks.control_plane.reports import ReportMaker
from benchmarks.control_plane.servers import (
    API,
    PACKAGES,
    Running,
    Store,
    add_running,
    run_on_databases,
    served,
    user_token,
)
from benchmarks.report import emit, percentile
from server.core.events.tail import LIMITS
from trainyard.base.file_limit import raise_file_limit

TARGET_SECONDS = 1.0
PARSES = 10
"""One client in this many parses its frames."""
LAST_FRAME_SECONDS = 5.0
METRICS = b'"kind":"metrics"'

Step = tuple[str, int]
"""A job, and one of its steps."""


@dataclass
class Received:
    """The clients' results."""

    at: dict[Step, list[float]]
    """Unix times at which each step arrived at the parsing clients."""
    bytes_each: float
    """Bytes per client, over all clients."""
    ended: int
    """Clients that lost their stream by its end or a reset."""


def listen(urls: Sequence[str], tokens: Sequence[str], clients: int, sender: Pipe) -> None:
    """Hold streams open, distributed over the API's processes, until the sender sends None.

    Args:
        urls: URLs of the API's processes.
        tokens: tokens of users, each for an equal part of the clients.
        clients: number of streams.
        sender: gets None once all streams are open; then it sends None at the end, and gets the
            results.
    """
    raise_file_limit()
    asyncio.run(_listen_all(urls, tokens, clients=clients, sender=sender))


async def _listen_all(
    urls: Sequence[str], tokens: Sequence[str], *, clients: int, sender: Pipe
) -> None:
    received, opened = Received({}, 0.0, 0), asyncio.Semaphore(0)
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(
                _listen(
                    urls[n % len(urls)],
                    tokens[n % len(tokens)],
                    number=n,
                    opened=opened,
                    received=received,
                )
            )
            for n in range(clients)
        ]
        for _ in tasks:
            await opened.acquire()
        sender.send(None)
        await asyncio.to_thread(sender.recv)
        for task in tasks:
            task.cancel()
    received.bytes_each /= clients
    sender.send(received)


async def _listen(
    url: str, token: str, *, number: int, opened: asyncio.Semaphore, received: Received
) -> None:
    target = urlsplit(url)
    reader, writer = await asyncio.open_connection(target.hostname, target.port)
    head = f"GET {API}/stream HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {token}\r\n\r\n"
    writer.write(head.encode())
    await reader.readuntil(b"id: ")  # everything after it is new
    opened.release()
    rest = b""
    try:
        while content := await reader.read(1 << 16):
            received.bytes_each += len(content)
            if number % PARSES == 0:
                *lines, rest = (rest + content).split(b"\n")
                _note(lines, received)
        received.ended += 1
    finally:
        writer.close()


def _note(lines: Sequence[bytes], received: Received) -> None:
    now = time.time()
    for line in lines:
        if line.startswith(b"event: reset"):
            received.ended += 1
        elif line.startswith(b"data: {") and METRICS in line:
            notice = json.loads(line.removeprefix(b"data: "))
            step = notice["job_id"], notice["data"]["step"]
            received.at.setdefault(step, []).append(now)


async def _report_all(
    run: Run, runnings: Sequence[Running], *, seconds: float
) -> tuple[dict[Step, float], list[float]]:
    """Report a step of each job in each interval.

    Returns:
        When each step was due, and the seconds from then to the answer of each report.
    """
    due: dict[Step, float] = {}
    answered = await asyncio.gather(
        *(
            _report(run, running, phase=place / len(runnings), seconds=seconds, due=due)
            for place, running in enumerate(runnings)
        )
    )
    return due, [each for of_job in answered for each in of_job]


async def _report(
    run: Run, running: Running, *, phase: float, seconds: float, due: dict[Step, float]
) -> list[float]:
    answered: list[float] = []
    interval = run.opened.context.settings.report_seconds
    api = run.apis[int(phase * len(run.apis))]
    url = f"{api.url}{API}/workers/attempts/{running.attempt_id}/report"
    connection = Connection(Lane("report", url, running.token, ()))
    maker = ReportMaker(running, seed=0)
    begin = time.time() + phase * interval
    for number in range(int(seconds / interval)):
        body = maker.make(steps=1)
        at = begin + number * interval
        await asyncio.sleep(at - time.time())
        due[running.job_id, number + 1] = at
        status = await connection.request(body)
        assert status == 200, f"the server answered {status}"
        answered.append(time.time() - at)
    connection.close()
    return answered


def measure(opened: Store, given: argparse.Namespace) -> bool:
    """Measure on one database."""
    runnings = [add_running(opened.context, f"job-{number}") for number in range(given.jobs)]
    users = -(-given.clients // LIMITS.per_person)
    tokens = [user_token(opened) for _ in range(users)]
    with ExitStack() as stack:
        limit = str(given.clients + 100)
        apis = [
            stack.enter_context(served(opened, MAX_CONNECTIONS_PER_ADDRESS=limit))
            for _ in range(given.api_processes)
        ]
        run = Run(opened, apis, given.seconds, 1)
        spawn = get_context("spawn")
        here, there = spawn.Pipe()
        urls = [api.url for api in apis]
        listening = spawn.Process(target=listen, args=(urls, tokens, given.clients, there))
        listening.start()
        there.close()  # so that the end of the process ends a wait for it
        here.recv()
        with spent(opened, api=apis) as used:
            due, answered = asyncio.run(_report_all(run, runnings, seconds=given.seconds))
        time.sleep(LAST_FRAME_SECONDS)
        here.send(None)
        received = here.recv()
        listening.join()
    assert not received.ended, f"{received.ended} streams ended early"
    took, missed = _times(due, received)
    processors = {kind: round(s / given.seconds, 2) for kind, s in used.seconds.items()}
    return emit(
        "stream_clients",
        figure=percentile(took, 0.95),
        unit="s (p95)",
        target=TARGET_SECONDS,
        at_least=False,
        packages=PACKAGES,
        database=opened.kind,
        median_seconds=round(percentile(took, 0.5), 3),
        longest_seconds=round(max(took), 3),
        answered_p95_seconds=round(percentile(answered, 0.95), 3),
        clients=given.clients,
        jobs=given.jobs,
        api_processes=given.api_processes,
        frames=len(took),
        overtaken=missed,
        kib_a_client=round(received.bytes_each / 1024, 1),
        processors_used=processors,
    )


def _times(due: dict[Step, float], received: Received) -> tuple[list[float], int]:
    """Return the time of each step at each client, and the number of frames replaced by later ones.

    A step overtaken by a later one of its job arrived with that one.
    """
    took: list[float] = []
    missed = 0
    clients = max(map(len, received.at.values()), default=0)
    for (job_id, step), at in due.items():
        came = received.at.get((job_id, step), [])
        took += (each - at for each in came)
        missed += clients - len(came)
        if len(came) < clients and (later := received.at.get((job_id, step + 1))):
            took += [max(later) - at] * (clients - len(came))
    return took, missed


def main() -> int:
    """Measure on both databases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--api-processes", type=int, default=1)
    return run_on_databases(parser, measure)


if __name__ == "__main__":
    sys.exit(main())
