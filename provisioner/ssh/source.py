"""Nodes from machines that the system's `ssh` reaches: one pilot at a time per machine.

The state is kept on the machines (`host.sh`). A call runs one `ssh` per machine, at most `parallel`
of them concurrently. The provisioner itself only records which machines it has chosen for a
request, before it calls them. So a request whose submission was lost gets the same machines again.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import ceil
from pathlib import Path
from typing import TypeVar

from provisioner.base import EngineListing, LoginNeeded, Place, SourceError, Submission, printable
from provisioner.ssh.bundle import Bundle, read_bundle
from provisioner.ssh.hosts import SshOptions
from provisioner.ssh.machine_answers import Machine
from provisioner.ssh.remote_calls import Ssh
from trainyard.base.ids import is_id
from trainyard.protocol.node_sources.messages import EngineJob, EngineNode, EngineState, job_name
from trainyard.run.atomic import replace_file

PYTHON = (3, 11)
"""Minimum version of Python that runs the worker."""
REASON_CHARACTERS = 2000
RECORD_SECONDS = 86400.0
"""Time, in seconds, for which the machines of an unknown or ended request stay recorded."""
Item = TypeVar("Item")
Result = TypeVar("Result")


Answers = tuple[dict[str, Machine], dict[str, SourceError]]
"""The machines that responded, and the errors of the machines that did not."""


class SshSource:
    """The machines of one source; implements `NodeSource`."""

    def __init__(self, place: Place, options: SshOptions) -> None:
        self._place = place
        self._options = options
        self._ssh = Ssh(options)

    def submit(self, submission: Submission) -> str:
        """Start a pilot on a free machine for each node; pilots that already run are kept."""
        request_id, nodes = submission.request_id, submission.shape.nodes
        hosts = self._options.hosts
        if nodes > len(hosts):
            raise SourceError.refusal(f"nodes={nodes}: the source has {len(hosts)} machines")
        bundle = read_bundle(Path(self._options.bundle)) if self._options.bundle else None
        pythons = (self._place.python, *((f"python{bundle.python}", "python3") if bundle else ()))
        answers = self._look(hosts, pythons=pythons, bundle=bundle)
        machines, errors = answers
        hosts_by_index = self._choose(submission, answers, bundle)
        for host in hosts_by_index.values():
            if host in errors:
                raise errors[host]
        new = {
            index: host
            for index, host in hosts_by_index.items()
            if request_id not in machines[host].pilots
            or machines[host].pilots[request_id].state in ("reserved", "starting")
        }
        python_of = {host: _python(self._place, machines[host], bundle) for host in new.values()}
        if bundle is not None:
            missing = [host for host in new.values() if not machines[host].installed]
            _require(self._each(missing, lambda host: self._install(host, python_of[host], bundle)))
            python_of = dict.fromkeys(new.values(), f"bundles/{bundle.digest}/venv/bin/python")
        self._reserve(submission, new, bundle)
        seconds = "" if submission.seconds is None else str(ceil(submission.seconds))
        _require(
            self._each(
                new.values(),
                lambda host: self._ssh.call(host, "start", request_id, python_of[host], seconds),
            )
        )
        return job_name(request_id)

    def list(self) -> EngineListing:
        """Return the requests on all machines; a request on a silent machine is unknown."""
        machines, errors = self._look(self._options.hosts)
        if not machines:
            _require(errors)
        found = {request_id for machine in machines.values() for request_id in machine.pilots}
        records = {path.stem: path for path in (self._place.folder / "hosts").glob("*.json")}
        jobs = {each: self._job(each, machines, errors) for each in sorted({*found, *records})}
        for request_id, path in records.items():
            job = jobs[request_id]
            old = time.time() - path.stat().st_mtime > RECORD_SECONDS
            if old and (job is None or job.gone):
                path.unlink(missing_ok=True)
        logins = (error for error in errors.values() if isinstance(error, LoginNeeded))
        return EngineListing([job for job in jobs.values() if job is not None], next(logins, None))

    def status(self, request_ids: Sequence[str]) -> Sequence[EngineJob]:
        """Return these requests; call only the machines chosen for them, or all machines if a
        choice is not recorded."""
        hosts = {host for each in request_ids for host in self._hosts_of(each)}
        machines, errors = self._look(sorted(hosts))
        if not machines:
            _require(errors)
        return [job for each in request_ids if (job := self._job(each, machines, errors))]

    def cancel(self, request_id: str) -> None:
        """Order the pilots to save and leave; `list` kills remaining pilots after
        `grace_seconds`."""
        hosts = self._hosts_of(request_id)
        _require(self._each(hosts, lambda host: self._ssh.call(host, "cancel", request_id)))

    def explain(self, request_id: str) -> str:
        """Return the last lines of the pilots' logs."""
        answers = self._each(
            self._hosts_of(request_id), lambda host: self._ssh.call(host, "explain", request_id)
        )
        texts = [
            f"{host}: {answer}" if isinstance(answer, SourceError) else "\n".join((host, *answer))
            for host, answer in answers.items()
            if isinstance(answer, SourceError) or answer
        ]
        each = REASON_CHARACTERS // max(1, len(texts)) - 1
        return "\n".join(text if len(text) <= each else f"...{text[3 - each :]}" for text in texts)

    def _look(
        self, hosts: Iterable[str], *, pythons: Iterable[str] = (), bundle: Bundle | None = None
    ) -> Answers:
        """Return the machines' responses, including their interpreters and bundle."""
        words = (str(ceil(self._options.grace_seconds)), bundle.digest if bundle else "", *pythons)

        def look(host: str) -> Machine:
            try:
                return Machine.parse(self._ssh.call(host, "look", *words))
            except ValueError as error:  # this machine's error; report the others
                text = printable(str(error))[:200]
                raise SourceError(f"{host}: the answer to look cannot be read: {text}") from error

        answers = self._each(hosts, look)
        machines = {host: a for host, a in answers.items() if isinstance(a, Machine)}
        return machines, {h: a for h, a in answers.items() if isinstance(a, SourceError)}

    def _choose(
        self, submission: Submission, answers: Answers, bundle: Bundle | None
    ) -> dict[int, str]:
        """Return the machine for each index; record the choice before calling the machines."""
        machines, errors = answers
        request_id, nodes = submission.request_id, submission.shape.nodes
        chosen = {i: h for i, h in self._recorded(request_id).items() if h in self._options.hosts}
        for host, machine in machines.items():
            if request_id in machine.pilots:
                chosen[machine.pilots[request_id].index] = host
        unfit: dict[str, str] = {}
        free: list[str] = []
        for host, machine in machines.items():
            try:
                _python(self._place, machine, bundle)
            except SourceError as error:
                unfit[host] = f"{host}: {error}"
                continue
            if machine.free and host not in chosen.values():
                free.append(host)
        missing = [index for index in range(nodes) if index not in chosen]
        if len(missing) > len(free):
            logins = [error for error in errors.values() if isinstance(error, LoginNeeded)]
            if logins:
                raise logins[0]
            usable = len(self._options.hosts) - len(unfit)
            reasons = (*unfit.values(), *map(str, errors.values()))
            text = f"{len(free)} machines are free, {len(missing)} are needed"
            text = "; ".join((text, *reasons))[:REASON_CHARACTERS]
            raise SourceError.refusal(text) if usable < nodes else SourceError(text)
        chosen.update(zip(missing, free, strict=False))
        self._record(request_id, chosen)
        return chosen

    def _reserve(
        self, submission: Submission, hosts: Mapping[int, str], bundle: Bundle | None
    ) -> None:
        """Reserve all machines or none, so that requests never wait for each other's machines."""
        request_id = submission.request_id
        secrets = submission.secrets.read_text(encoding="utf-8").splitlines()

        def take(item: tuple[int, str]) -> list[str]:
            index, host = item
            # A machine receives only the secret of its own pilot, on the line of the pilot's index.
            own = "".join(f"{each if i == index else '-'}\n" for i, each in enumerate(secrets))
            variables = {
                "TRAINYARD_NOTICE_SECONDS": f"{self._options.grace_seconds:g}",
                **submission.environment,
                "TRAINYARD_PILOT_INDEX": str(index),
            }
            exports = "".join(f"export {k}={shlex.quote(v)}\n" for k, v in variables.items())
            words = (request_id, self._place.name, str(index), str(submission.shape.nodes))
            digest = bundle.digest if bundle else "-"
            return self._ssh.call(host, "reserve", *words, digest, documents=(own, exports))

        answers = self._each(hosts.items(), take)
        errors = [answer for answer in answers.values() if isinstance(answer, SourceError)]
        taken = {
            host: f"{host} is taken: {' '.join(answer)}"
            for (index, host), answer in answers.items()
            if not isinstance(answer, SourceError)
            and answer[-1:] != [f"reserved {index} {submission.shape.nodes}"]
        }
        if not errors and not taken:
            return
        self._each(hosts.values(), lambda host: self._ssh.call(host, "release", request_id))
        recorded = self._recorded(request_id).items()
        self._record(request_id, {i: host for i, host in recorded if host not in taken})
        raise errors[0] if errors else SourceError("; ".join(taken.values()))

    def _install(self, host: str, python: str, bundle: Bundle) -> None:
        self._ssh.upload(host, bundle.path, f"{self._options.base}/bundles/{bundle.digest}")
        seconds = self._options.install_seconds
        self._ssh.call(host, "install", bundle.digest, python, seconds=seconds)

    def _job(
        self, request_id: str, machines: Mapping[str, Machine], errors: Mapping[str, SourceError]
    ) -> EngineJob | None:
        """Describe a request from the responses of all machines; None if it belongs to another
        source, or if no machine has it and no machine chosen for it is silent."""
        pilots = {h: m.pilots[request_id] for h, m in machines.items() if request_id in m.pilots}
        recorded = self._recorded(request_id)
        silent = [f"{h}: {errors[h]}" for h in recorded.values() if h in errors]
        if not (pilots or silent) or any(p.source != self._place.name for p in pilots.values()):
            return None
        nodes = max((pilot.nodes for pilot in pilots.values()), default=len(recorded))
        absent = set(range(nodes)) - {pilot.index for pilot in pilots.values()}
        # A missing pilot has never started if the machine chosen for it responds without a trace of
        # the pilot.
        unknown = any(recorded.get(index) not in machines for index in absent)
        states = {pilot.state for pilot in pilots.values()}
        state = _state(states, unknown=unknown)
        last_lines = (f"{h}: {p.last_line}" for h, p in pilots.items() if p.state == "gone")
        return EngineJob(
            request_id=request_id,
            ref=job_name(request_id),
            state=state,
            gone=state == "ended",
            reason=printable("; ".join((*silent, *last_lines)))[:REASON_CHARACTERS],
            starts_at=min((p.starts for p in pilots.values() if p.starts), default=None),
            ends_at=max((p.ends for p in pilots.values() if p.ends), default=None),
            nodes=tuple(
                EngineNode(
                    index=pilot.index,
                    instance=pilot.instance,
                    host=host,
                    addresses=machines[host].addresses,
                    gone=pilot.state == "gone",
                )
                for host, pilot in pilots.items()
                if pilot.instance != "-"
            ),
        )

    def _hosts_of(self, request_id: str) -> Sequence[str]:
        """Return the machines chosen for a request; all machines if the choice is not recorded."""
        recorded = self._recorded(request_id).values()
        return [h for h in self._options.hosts if h in recorded] or self._options.hosts

    def _recorded(self, request_id: str) -> dict[int, str]:
        try:
            text = self._record_file(request_id).read_text(encoding="utf-8")
        except FileNotFoundError:
            return {}
        return {int(index): str(host) for index, host in json.loads(text).items()}

    def _record(self, request_id: str, hosts: Mapping[int, str]) -> None:
        path = self._record_file(request_id)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        replace_file(path, json.dumps(hosts), mode=0o600)

    def _record_file(self, request_id: str) -> Path:
        if not is_id(request_id):
            raise SourceError(f"{request_id!r} is no id of a request")
        return self._place.folder / "hosts" / f"{request_id}.json"

    def _each(
        self, items: Iterable[Item], call: Callable[[Item], Result]
    ) -> dict[Item, Result | SourceError]:
        """Call machines concurrently; return the result or the error of each call."""

        def attempt(item: Item) -> Result | SourceError:
            try:
                return call(item)
            except SourceError as error:
                return error

        each = list(items)
        with ThreadPoolExecutor(self._options.parallel) as pool:
            return dict(zip(each, pool.map(attempt, each), strict=True))


def _require(answers: Mapping[Item, object]) -> None:
    """Raise an error if a call failed; prefer an error that a person can resolve."""
    errors = [answer for answer in answers.values() if isinstance(answer, SourceError)]
    for error in sorted(errors, key=lambda each: not isinstance(each, LoginNeeded)):
        raise error


def _python(place: Place, machine: Machine, bundle: Bundle | None) -> str:
    """Return the Python interpreter of a machine for a pilot.

    With a bundle, the interpreter has the bundle's Python version.

    Raises:
        SourceError: the machine has no interpreter of the required version.
    """
    fits = {
        version: path
        for version, path in machine.pythons.items()
        if (version == bundle.python if bundle else _version(version) >= PYTHON)
    }
    if fits:
        return next(iter(fits.values()))
    needed = f"Python {bundle.python}" if bundle else f"Python {PYTHON[0]}.{PYTHON[1]} or newer"
    found = ", ".join(f"{path} is {version}" for version, path in machine.pythons.items())
    raise SourceError.refusal(f"python={place.python!r} needs {needed}; {found or 'none is there'}")


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def _state(states: set[str], *, unknown: bool) -> EngineState:
    """Return the state of a request, given the states of its pilots."""
    if "running" in states:
        return "running"
    if unknown:
        return "unknown"
    if "leaving" in states:
        return "completing"
    return "pending" if states - {"gone"} else "ended"
