"""`down`: lets running jobs save and stop, then ends all processes on a data folder."""

from __future__ import annotations

import signal
import threading
import time

from embedded.folders import Folders
from embedded.record import Recorder, RunRecord, is_alive, read_record, send, wait_gone
from embedded.stack import END_SECONDS, Stack, StartError, StopRequestedError
from embedded.up import Notify, address_of, described, end_leftovers
from trainyard.client.errors import ConflictError, TrainyardError
from trainyard.client.sdk import Client
from trainyard.outside.proxies import ProxyError
from trainyard.protocol.rest.jobs import JobSummary
from trainyard.protocol.states import ACTIVE_JOB_STATES, JobState

POLL_SECONDS = 0.5
WHOLE_END_SECONDS = 6 * END_SECONDS
"""Maximum time, in seconds, until `up` has ended: `up` lists the jobs, then ends the broker after
the other processes. Each of the two ends takes up to twice `END_SECONDS`."""


def down(folders: Folders, notify: Notify, *, keep_running: bool, timeout_seconds: float) -> int:
    """End the processes on a data folder; return the exit status.

    Each running job first saves a checkpoint and stops; with `keep_running`, all jobs continue
    training. Queued jobs wait for the next `up`. If a job has not stopped after `timeout_seconds`,
    the status is 1, and a running `up` continues without its scheduler.
    """
    record = read_record(folders.record)
    if record is None:
        notify(f"Nothing runs on {folders.root}.")
        return 0
    with folders.held() as mine:
        if mine:
            try:
                return _without_up(
                    folders,
                    record,
                    notify=notify,
                    keep_running=keep_running,
                    timeout_seconds=timeout_seconds,
                )
            except (StartError, StopRequestedError, OSError, ProxyError, TrainyardError) as error:
                notify(f"Error: {error}")
                return 1
    try:
        return _with_up(
            folders,
            record,
            notify=notify,
            keep_running=keep_running,
            timeout_seconds=timeout_seconds,
        )
    except (OSError, TrainyardError) as error:
        notify(f"Error: {error} `trainyard down --keep-running` ends it without stopping jobs.")
        return 1


def _with_up(
    folders: Folders,
    record: RunRecord,
    *,
    notify: Notify,
    keep_running: bool,
    timeout_seconds: float,
) -> int:
    """Stop the jobs unless `keep_running`, then end the running `up` by SIGTERM."""
    if record.up is None or not is_alive(record.up):
        notify(f"Trainyard is starting or ending on {folders.root} at this moment; try again.")
        return 1
    if not keep_running:
        _stop_placing(folders, record)
        token = folders.admin_token.read_text(encoding="utf-8").strip()
        with Client(record.url, token) as yard:
            if not save_jobs(yard, notify, timeout_seconds=timeout_seconds):
                return 1
    send(record.up, signal.SIGTERM)
    if not wait_gone(record.up, seconds=WHOLE_END_SECONDS):
        notify(f"Error: process {record.up.pid} does not end; its logs: {folders.root / 'logs'}")
        return 1
    notify("Trainyard has ended.")
    return 0


def _without_up(
    folders: Folders,
    record: RunRecord,
    *,
    notify: Notify,
    keep_running: bool,
    timeout_seconds: float,
) -> int:
    """End what a killed `up` left running; start a server to stop jobs that may still train."""
    end_leftovers(folders)
    if keep_running or record.training == ():
        notify(f"Nothing {'else ' if keep_running else ''}runs on {folders.root}.")
        return 0
    notify("Starting the server again, to stop the jobs that continue training.")
    address = address_of(folders, host="127.0.0.1", port=None)
    recorder = Recorder(folders.record, url=address.url, port=address.port)
    stack = Stack(
        folders, address, slots=None, stopping=threading.Event(), changed=recorder.running
    )
    training: tuple[str, ...] | None = record.training
    try:
        yard = stack.start_server()
        stack.start_worker(yard)  # supervisors read the new server address from the node's files
        if not save_jobs(yard, notify, timeout_seconds=timeout_seconds):
            return 1
        training = ()
    finally:
        stack.end()
        recorder.ended(training=training)
    notify("Trainyard has ended.")
    return 0


def save_jobs(yard: Client, notify: Notify, *, timeout_seconds: float) -> bool:
    """Stop every job that holds slots, and wait; return whether all of them have stopped."""
    stopped: set[str] = set()
    deadline = time.monotonic() + timeout_seconds
    while active := list(yard.jobs(states=sorted(ACTIVE_JOB_STATES))):
        for job in active:
            if job.id not in stopped:
                stopped.add(job.id)
                _stop(yard, job, notify)
        if time.monotonic() > deadline:
            names = ", ".join(described(job) for job in active)
            notify(f"Error: still training after {timeout_seconds:g} s: {names}.")
            notify("They continue to save; nothing new is placed. `trainyard down` waits again.")
            return False
        time.sleep(POLL_SECONDS)
    for job_id in stopped:
        job = yard.job(job_id)
        notify(f"  {job.name}: {job.state} at step {job.progress.step:,}")
    waiting = sum(1 for _ in yard.jobs(states=[JobState.QUEUED]))
    if waiting:
        notify(f"  {waiting} queued job{'s' if waiting != 1 else ''}: for the next `trainyard up`")
    return True


def _stop(yard: Client, job: JobSummary, notify: Notify) -> None:
    if job.state == JobState.STOPPING:
        return
    notify(f"Stopping {described(job)}: it saves a checkpoint first")
    try:
        yard.stop(job.id, reason="trainyard down")
    except ConflictError:  # the job has ended meanwhile
        return


def _stop_placing(folders: Folders, record: RunRecord) -> None:
    """Make `up` end the scheduler, so that no queued job takes the freed slots."""
    if record.up is None or not send(record.up, signal.SIGUSR1):
        return
    deadline = time.monotonic() + WHOLE_END_SECONDS
    while time.monotonic() < deadline:
        now = read_record(folders.record)
        if now is None or "scheduler" not in now.processes:
            return
        time.sleep(POLL_SECONDS / 5)
