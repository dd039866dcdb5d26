"""`up`: runs a control plane on a data folder; on Ctrl-C it ends, but jobs continue training."""

from __future__ import annotations

import signal
import threading
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from embedded.access import let_user_in, login_link
from embedded.child import next_free_port
from embedded.first_job import INTERRUPTED, FirstJob, FirstJobRequest
from embedded.folders import Folders
from embedded.record import Recorder, end, read_record, write_record
from embedded.stack import END_SECONDS, Address, Stack, StartError, StopRequestedError
from trainyard.client.errors import TrainyardError
from trainyard.client.sdk import Client
from trainyard.client.settings import DEFAULT_PROFILE, config_path
from trainyard.outside.proxies import ProxyError
from trainyard.protocol.rest.jobs import JobSummary
from trainyard.protocol.states import ACTIVE_JOB_STATES

DEFAULT_PORT = 8470
TEND_SECONDS = 0.25
AWKWARD = ",?%#"
"""Printable characters that a path must not contain, because no setting can hold them."""

Notify = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """Command-line options of `up`."""

    root: Path
    host: str = "127.0.0.1"
    port: int | None = None
    slots: int | None = None
    browser: bool = False
    profile: str | None = DEFAULT_PROFILE
    """Name of the profile in which to store the user's connection; None to store it nowhere."""
    job: FirstJobRequest | None = None
    """Job to submit once the control plane runs; None for none."""


@dataclass(frozen=True)
class UpSignals:
    """Requests to a running `up`, each set by a signal."""

    stop: threading.Event = field(default_factory=threading.Event)
    """Set by SIGINT and SIGTERM: `up` ends its processes and leaves jobs training."""
    wind_down: threading.Event = field(default_factory=threading.Event)
    """Set by SIGUSR1, which `down` sends before it stops the jobs: `up` places no more jobs."""

    def listen(self) -> None:
        """Install the signal handlers of this process."""
        signal.signal(signal.SIGINT, lambda *_: self.stop.set())
        signal.signal(signal.SIGTERM, lambda *_: self.stop.set())
        signal.signal(signal.SIGUSR1, lambda *_: self.wind_down.set())


def up(options: Options, notify: Notify) -> int:
    """Run until SIGINT, SIGTERM or the end of the requested job; return the exit status.

    If `up` runs already, the status is 0, or 1 if a job was requested, which is not submitted.
    """
    folders = Folders(options.root)
    try:
        _check(options.root)
        folders.make()
    except (OSError, ValueError) as error:
        notify(f"Error: cannot keep data in {options.root}: {error}")
        return 1
    with folders.held() as mine:
        if not mine:
            notify(_already(folders))
            if options.job is None:
                return 0
            notify("Error: no job was submitted; use `trainyard submit`.")
            return 1
        signals = UpSignals()
        signals.listen()
        try:
            end_leftovers(folders)
            return _run(folders, options, signals=signals, notify=notify)
        except (StartError, OSError, ProxyError, TrainyardError) as error:
            notify(f"Error: {error}")
            return 1
        except StopRequestedError:
            notify("Ended while starting.")
            return 0 if options.job is None else INTERRUPTED


def end_leftovers(folders: Folders) -> None:
    """End processes that outlived a killed `up`; the jobs continue training."""
    record = read_record(folders.record)
    if record is None:
        return
    end(record.processes.values(), grace_seconds=END_SECONDS)
    write_record(folders.record, record.model_copy(update={"up": None, "processes": {}}))


def address_of(folders: Folders, *, host: str, port: int | None) -> Address:
    """Return the API's address, with the first free port from the requested one on.

    Without a requested port, the search starts at the former port or, at the first start, at the
    default port.

    Raises:
        OSError: no port is free, or the host is not this machine.
    """
    record = read_record(folders.record)
    first = port or (record.port if record else DEFAULT_PORT)
    return Address(host, next_free_port(host, first))


def _run(folders: Folders, options: Options, *, signals: UpSignals, notify: Notify) -> int:
    address = address_of(folders, host=options.host, port=options.port)
    recorder = Recorder(folders.record, url=address.url, port=address.port)
    stack = Stack(
        folders,
        address,
        slots=options.slots,
        stopping=signals.stop,
        changed=recorder.running,
    )
    training: tuple[str, ...] | None = None
    job: FirstJob | None = None
    status = 0
    notify(f"Starting Trainyard on {folders.root}")
    try:
        yard = stack.start_server()
        stack.start_scheduler()
        stack.start_worker(yard)
        stack.check()
        _welcome(folders, options, yard=yard, notify=notify)
        if options.job is not None:
            token = folders.user_token.read_text(encoding="utf-8").strip()
            job = FirstJob(options.job, url=yard.url, token=token)
        _keep_running(stack, signals, notify=notify, job=job)
        training = _list_training(yard, notify)
    finally:
        if job is not None:
            status = job.leave(interrupted=signals.stop.is_set())
        stack.end()
        recorder.ended(training=training)
    return status


def _keep_running(
    stack: Stack, signals: UpSignals, *, notify: Notify, job: FirstJob | None
) -> None:
    while not signals.stop.wait(TEND_SECONDS):
        if job is not None and job.ends_up():
            return
        if signals.wind_down.is_set():
            stack.end("scheduler")
        stack.tend(notify)


def _welcome(folders: Folders, options: Options, *, yard: Client, notify: Notify) -> None:
    name = let_user_in(folders, yard, profile=options.profile)
    link = login_link(yard)
    if options.port not in (None, 0) and not yard.url.endswith(f":{options.port}"):
        notify(f"Port {options.port} is taken.")
    slots = sum(node.hardware.slots for node in yard.nodes() if node.online)
    notify(f"Trainyard runs at {yard.url} with {slots} slot{'s' if slots != 1 else ''}.")
    with suppress(TrainyardError):  # the list is no reason to end
        for training in yard.jobs(states=sorted(ACTIVE_JOB_STATES)):
            notify(f"  {described(training)} was training when `up` ended")
    if link:
        notify(f"  log in    {link}  (once, within ten minutes)")
    if options.profile is not None:
        chosen = "" if options.profile == DEFAULT_PROFILE else f" --profile {options.profile}"
        notify(f"  commands  trainyard{chosen} ps  (as {name}, by {config_path()})")
    notify(f"  data      {folders.data}  (a folder `books` in it is data.path=data:books)")
    notify(f"  logs      {folders.log('server').parent}")
    notify("Ctrl-C leaves jobs training; `trainyard down` saves and ends them.")
    if link and options.browser:
        webbrowser.open(link)


def _list_training(yard: Client, notify: Notify) -> tuple[str, ...] | None:
    """List the jobs that continue training; return their ids, or None if the request fails."""
    try:
        jobs = list(yard.jobs(states=sorted(ACTIVE_JOB_STATES)))
    except TrainyardError:
        return None
    for job in jobs:
        notify(f"  {described(job)} continues training")
    if jobs:
        notify("`trainyard up` takes them back; `trainyard down` saves and ends them.")
    return tuple(job.id for job in jobs)


def described(job: JobSummary) -> str:
    """Return a text with name, id, step and, if known, number of steps of a job."""
    steps = "" if job.progress.steps is None else f" of {job.progress.steps:,}"
    return f"{job.name} ({job.id}, step {job.progress.step:,}{steps})"


def _check(root: Path) -> None:
    awkward = sorted({c for c in str(root) if c in AWKWARD or not c.isprintable()})
    if awkward:
        raise ValueError(f"the path holds {', '.join(map(repr, awkward))}")


def _already(folders: Folders) -> str:
    record = read_record(folders.record)
    if record is None or record.up is None:
        return f"Trainyard is starting or ending on {folders.root} at this moment."
    text = (
        f"Trainyard runs already on {folders.root}: {record.url} (process {record.up.pid}). "
        "`trainyard down` ends it."
    )
    link = _another_link(folders, record.url)
    return f"{text}\n  log in    {link}  (once, within ten minutes)" if link else text


def _another_link(folders: Folders, url: str) -> str | None:
    """Return a new login link; None if the server does not respond or serves no dashboard."""
    try:
        token = folders.admin_token.read_text(encoding="utf-8").strip()
        with Client(url, token) as yard:
            return login_link(yard)
    except (OSError, TrainyardError):
        return None
