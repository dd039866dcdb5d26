"""Slurm as a source of nodes: one batch job for each request, with pilots as its tasks.

Jobs are found by name, comment and user. Accounting is not required: without it, a job that squeue
has forgotten is unknown, because only sacct can prove its end.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import shlex
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from provisioner.base import (
    EngineListing,
    Place,
    SourceError,
    Submission,
    error_text,
    run_command,
    run_over_ssh,
)
from provisioner.slurm_options import SlurmOptions
from trainyard.base.ids import is_id
from trainyard.protocol.node_sources.messages import (
    MAX_NODES,
    EngineJob,
    EngineNode,
    EngineState,
    job_name,
)
from trainyard.run.atomic import create_file

OLDEST = (20, 11)
"""Oldest version of Slurm that has every option used here."""
UNPROVEN = "NODE_FAIL"
"""State of an ended job whose processes may still run on a silent node."""
_STATES: Mapping[EngineState, str] = {
    "pending": "PENDING CONFIGURING REQUEUED REQUEUE_HOLD REQUEUE_FED SPECIAL_EXIT",
    "running": "RUNNING SUSPENDED STOPPED RESIZING SIGNALING",
    "completing": "COMPLETING STAGE_OUT",
    "ended": "COMPLETED CANCELLED FAILED TIMEOUT PREEMPTED OUT_OF_MEMORY DEADLINE BOOT_FAIL "
    "NODE_FAIL",
}
STATES = {name: state for state, names in _STATES.items() for name in names.split()}
"""Engine state for each Slurm state; all other Slurm states count as unknown."""
SILENT = re.compile(r"\*|DOWN|NOT_RESPONDING|UNKNOWN|FAIL|POWER|REBOOT|FUTURE")
"""States of a node that does not respond reliably."""
FIELDS = (
    *(("JobID", 32), ("State", 20), ("Name", 48), ("RestartCnt", 12), ("Comment", 64)),
    *(("StartTime", 24), ("EndTime", 24), ("NodeList", 8000), ("Reason", 200)),
)
"""Columns of squeue with fixed widths, because old versions support neither JSON nor separators."""
REFUSALS = re.compile(
    "(?i)invalid|unrecognized|not available|not permitted|permission denied|violates|requires|"
    "ambiguous|more .* than permitted|unable to determine|required|disabled"
)
PASSING = re.compile(
    "(?i)contact|timed out|temporarily|authentication|zero bytes|standby|connection|munge"
)
"""Errors of sbatch with a cause in the controller, not in the request; a retry may succeed."""
AT_ONCE = 500
"""Maximum number of job names per command; the kernel accepts at most 128 KiB per argument."""
MAX_OUTPUT = 256 * 2**20
"""Maximum output of a command, in bytes; squeue writes 8.4 KB for each job of the user."""
RESOLVED_SECONDS = 600.0
"""Seconds for which a name's addresses are kept; a node may return with other addresses."""
LOG = "pilots.log"
# Only the shell gets the notice, and writes a file: USR1 would end programs that do not handle it.
# TERM reaches the pilots directly. Its trap keeps the shell alive, and so srun and the pilots.
NOTICE = """rm -f "$TRAINYARD_PREEMPTION_NOTICE_FILE"
trap 'echo the allocation ends soon > "$TRAINYARD_PREEMPTION_NOTICE_FILE"' USR1
trap : TERM"""
WAIT = "while kill -0 $! 2> /dev/null; do wait $!; done"
TIMES = ("env", "SLURM_TIME_FORMAT=%s")
"""Prefix that makes Slurm print Unix times, because its default format has no time zone."""
WRITE_SECRETS = (
    'umask 077 && mkdir -p "$1" && [ -O "$1" ] && '
    'cat > "$1/.draft.$$" && mv "$1/.draft.$$" "$1/secrets"'
)


@dataclass(frozen=True)
class _Row:
    """A parsed line of squeue's output."""

    job_id: str
    state: str
    request_id: str
    restarts: int
    nodes: int
    """Number of nodes that the job requested."""
    starts_at: float | None
    ends_at: float | None
    node_list: str
    reason: str

    @property
    def has_ended(self) -> bool:
        return STATES.get(self.state) == "ended"


class SlurmSource:
    """The jobs of one source in one Slurm cluster."""

    def __init__(self, place: Place, options: SlurmOptions) -> None:
        """Prepare calls to a cluster; raise `ValueError` if options contradict each other."""
        if options.ssh and options.folder is None:
            raise ValueError(f"source {place.name}: options.ssh needs options.folder")
        self._place = place
        self._options = options
        self._comment = f"trainyard/{place.name}/"  # the number of nodes follows
        self._resolved: dict[str, tuple[float, tuple[str, ...]]] = {}
        self._version: tuple[int, ...] = ()
        self._kill_wait: int | None = None

    def submit(self, submission: Submission) -> str:
        """Start a request's job unless a job with its name exists; return Slurm's id."""
        if found := self._rows([submission.request_id]):
            return found[0].job_id
        self._probe()
        folder = self._folder_of(submission.request_id)
        if str(folder / "secrets") != str(submission.secrets):
            write = ("sh", "-c", WRITE_SECRETS, "sh", str(folder))
            self._run(*write, stdin=submission.secrets.read_bytes())
        ours = self._resources(submission)
        done = self._command(
            # Given twice: an operator's option without a value would take the next word as its
            # value, instead of our job name.
            *("sbatch", "--parsable", *ours, *self._options.options, *ours),
            stdin=self._script(submission, folder).encode(),
        )
        if text := error_text(done) if done.returncode else "":
            refused = REFUSALS.search(text) and not PASSING.search(text)
            raise SourceError.refusal(text) if refused else SourceError(text)
        ref = done.stdout.decode().strip().partition(";")[0]
        if not ref.isdigit():
            raise SourceError(f"sbatch answered {ref[:100]!r}, which is no job id")
        return ref

    def list(self) -> EngineListing:
        """Return the jobs that the controller remembers; remove ended jobs' secrets in `folder`."""
        jobs = self._jobs(self._rows([]))
        ended = [job.request_id for job in jobs if job.state == "ended" and job.gone]
        if self._options.folder is not None:
            old = [str(self._folder_of(one) / "secrets") for one in ended]
            for first in range(0, len(old), AT_ONCE):
                self._command("rm", "-f", *old[first : first + AT_ONCE])
        return EngineListing(jobs)

    def status(self, request_ids: Sequence[str]) -> Sequence[EngineJob]:
        """Return the jobs for these requests; sacct adds ended jobs that squeue has forgotten."""
        jobs = self._jobs(self._rows(request_ids))
        known = {job.request_id for job in jobs}
        return [*jobs, *self._accounted([one for one in request_ids if one not in known])]

    def cancel(self, request_id: str) -> None:
        """Cancel a request's job: its pilots get SIGTERM and, after `KillWait`, SIGKILL."""
        for row in self._rows([request_id]):
            if not row.has_ended:
                self._run("scancel", row.job_id)

    def explain(self, request_id: str) -> str:
        """Return Slurm's description of the job, and the last lines of its pilots' log."""
        rows = self._rows([request_id])
        if not rows:
            return f"Slurm has no job named {job_name(request_id)}: it may have forgotten it"
        described = self._run("scontrol", "show", "job", rows[0].job_id).strip()
        log = self._command("tail", "-n", "20", str(self._folder_of(request_id) / LOG))
        lines = log.stdout.decode(errors="replace").strip()
        return f"{rows[0].state} ({rows[0].reason})\n{lines[-900:]}\n{described[:900]}"

    def _resources(self, submission: Submission) -> tuple[str, ...]:
        options, shape = self._options, submission.shape
        usual, seconds = f"gpu:{shape.slots}" if shape.device == "cuda" else "", submission.seconds
        gres = usual if options.gres is None else options.gres
        return (
            f"--job-name={job_name(submission.request_id)}",
            f"--comment={self._comment}{shape.nodes}",
            f"--nodes={shape.nodes}",
            "--ntasks-per-node=1",
            f"--cpus-per-task={options.cpus_per_node or shape.slots}",
            f"--signal=B:USR1@{options.signal_seconds}",
            f"--output={self._folder_of(submission.request_id) / LOG}",
            *("--export=NONE", "--no-requeue", "--no-kill"),
            *([f"--gres={gres}"] if gres else []),
            *([f"--time={max(1, math.ceil(seconds / 60))}"] if seconds is not None else []),
        )

    def _script(self, submission: Submission, folder: Path) -> str:
        """Return the batch script, which contains the path of the secrets but no secret."""
        cores = self._options.cpus_per_node or submission.shape.slots
        environment = dict(submission.environment)
        environment["TRAINYARD_JOIN_TOKEN_FILE"] = str(folder / "secrets")
        environment["TRAINYARD_PREEMPTION_NOTICE_FILE"] = str(folder / "notice")
        if self._kill_wait is not None:
            environment.setdefault("TRAINYARD_NOTICE_SECONDS", str(self._kill_wait))
        exports = (f"export {name}={shlex.quote(value)}" for name, value in environment.items())
        pilot = "pilot" if submission.purpose == "nodes" else "probe"
        step = [
            *("srun", "--export=ALL", "--no-kill", "--wait=0", "--kill-on-bad-exit=0"),
            *("--cpu-bind=none", "--mpi=none", f"--cpus-per-task={cores}"),
            *(["--gpu-bind=none"] if self._version >= (21, 8) else []),
            *(self._place.python, "-P", "-m", "worker", pilot),
        ]
        begin = ("#!/bin/bash", self._options.setup, *exports, NOTICE)
        return "\n".join((*begin, f"{shlex.join(step)} &", WAIT, ""))

    def _folder_of(self, request_id: str) -> Path:
        own = self._place.folder / "requests"
        return Path(self._options.folder or own) / request_id

    def _rows(self, request_ids: Sequence[str]) -> Sequence[_Row]:
        """Return the jobs of these requests that squeue still shows; without ids, of all requests.

        An sbatch whose response was lost may take effect only after the next sbatch. If two jobs
        then have the same name, the younger one is cancelled. But if one of the two has ended, the
        other one is returned, and no job is cancelled.
        """
        columns = ",".join(f"{name}:{width}" for name, width in FIELDS)
        names = [f"--name={','.join(map(job_name, request_ids))}"] if request_ids else []
        wanted = ("--me", "--noheader", "--states=all", *names, f"--Format={columns}")
        lines = self._run(*TIMES, "squeue", *wanted).splitlines()
        rows = sorted(filter(None, map(self._row, lines)), key=lambda row: int(row.job_id))
        kept: dict[str, _Row] = {}
        for row in sorted(rows, key=lambda row: row.has_ended):
            if kept.setdefault(row.request_id, row) is not row and not row.has_ended:
                self._command("scancel", row.job_id)
        return list(kept.values())

    def _row(self, line: str) -> _Row | None:
        """Parse a line of squeue; return None if the job is of another source or has no pilots."""
        ends = itertools.accumulate(width for _, width in FIELDS)
        values = {
            name: line[end - width : end].strip()
            for (name, width), end in zip(FIELDS, ends, strict=True)
        }
        request_id = values["Name"].removeprefix("trainyard-")
        nodes = values["Comment"].removeprefix(self._comment)
        ours = values["Comment"].startswith(self._comment) and nodes.isdigit()
        if not ours or not is_id(request_id) or not values["JobID"].isdigit():
            return None
        restarts = min(_integer(values["RestartCnt"]) or 0, MAX_NODES)
        times = _integer(values["StartTime"]), _integer(values["EndTime"])
        words = values["NodeList"], values["Reason"]
        return _Row(
            values["JobID"], values["State"], request_id, restarts, int(nodes), *times, *words
        )

    def _jobs(self, rows: Sequence[_Row]) -> Sequence[EngineJob]:
        """Return the jobs for these rows; one call to the controller covers `AT_ONCE` nodes."""
        lives = {row.job_id: self._lives(row) for row in rows}
        each = (hosts for of_job in lives.values() for hosts in of_job.values())
        addresses = self._addresses({host for hosts in each for host in hosts})
        return [_job(row, lives[row.job_id], addresses) for row in rows]

    def _lives(self, row: _Row) -> Mapping[int, Sequence[str]]:
        """Return, for each run of a running job, the hosts in the order of their tasks.

        Slurm removes failed and completed nodes from the node list of a job; the removal proves
        nothing about the processes on them. So the first complete list of each run is kept.
        """
        if STATES.get(row.state) not in ("running", "completing"):
            return {}
        folder = self._place.folder / "requests" / row.request_id
        kept = folder / f"{row.job_id}.{row.restarts}"
        if row.state == "RUNNING" and not kept.exists():
            hosts = self._run("scontrol", "show", "hostnames", row.node_list)
            if len(hosts.split()) == row.nodes:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                create_file(kept, hosts, mode=0o600)
        lives = {}
        for life in range(row.restarts + 1):
            with contextlib.suppress(FileNotFoundError):
                lives[life] = (folder / f"{row.job_id}.{life}").read_text("utf-8").split()
        return lives

    def _addresses(self, hosts: Collection[str]) -> Mapping[str, tuple[str, ...]]:
        """Return the addresses of nodes that respond to the controller; other nodes are omitted."""
        found: dict[str, tuple[str, ...]] = {}
        names = sorted(hosts)
        for first in range(0, len(names), AT_ONCE):
            some = ",".join(names[first : first + AT_ONCE])
            # If a node was deleted, the command fails, but its output on the other nodes is
            # correct.
            text = self._command("scontrol", "-o", "show", "node", some).stdout
            for line in text.decode(errors="replace").splitlines():
                fields = dict(word.partition("=")[::2] for word in line.split())
                name, address = fields.get("NodeName", ""), fields.get("NodeAddr", "")
                if address and not SILENT.search(fields.get("State", "UNKNOWN")):
                    found[name] = self._resolve(address)
        return found

    def _resolve(self, address: str) -> tuple[str, ...]:
        """Return the IP addresses for a name, as the login node resolves it."""
        at, found = self._resolved.get(address, (-math.inf, ()))
        if time.monotonic() - at >= RESOLVED_SECONDS:
            text = self._command("getent", "ahosts", address).stdout.decode(errors="replace")
            new = sorted({line.split()[0] for line in text.splitlines() if line.split()})[:16]
            if new:  # otherwise keep the earlier addresses and resolve the name later
                found = tuple(new)
                self._resolved[address] = time.monotonic(), found
        return found

    def _accounted(self, request_ids: Sequence[str]) -> Sequence[EngineJob]:
        """Return the requests' jobs that accounting shows as ended; empty without accounting."""
        if not request_ids:
            return []
        names = ",".join(job_name(one) for one in request_ids)
        what = ("--format=JobIDRaw,JobName,State,Start,End", f"--name={names}")
        wanted = ("--noheader", "--parsable2", "--allocations", "--starttime=now-60days", *what)
        done = self._command(*TIMES, "sacct", *wanted)
        lines = done.stdout.decode(errors="replace").splitlines() if not done.returncode else []
        jobs: dict[str, EngineJob] = {}
        for line in lines:
            ref, name, state, start, end = [*line.split("|"), *[""] * 5][:5]
            request_id, word = name.removeprefix("trainyard-"), state.partition(" ")[0]
            if STATES.get(word) == "ended" and request_id in request_ids:
                times = {"starts_at": _integer(start), "ends_at": _integer(end)}
                proved = {"state": "ended", "gone": word != UNPROVEN, "reason": state, **times}
                jobs[request_id] = EngineJob.model_validate(
                    {"request_id": request_id, "ref": ref, **proved}
                )
        return list(jobs.values())

    def _probe(self) -> None:
        """Read Slurm's version and `KillWait`, once."""
        if self._version:
            return
        text = self._run("squeue", "--version")
        found = re.search(r"(\d+)\.(\d+)", text)
        version = tuple(map(int, found.groups())) if found else ()
        if version < OLDEST:
            raise SourceError.refusal(f"{text.strip()!r}; Slurm {OLDEST[0]}.{OLDEST[1]} is needed")
        config = self._run("scontrol", "show", "config")
        if "proctrack/pgid" in config:  # then a job's end proves nothing about its ranks
            raise SourceError.refusal("ProctrackType=proctrack/pgid; cgroup or linuxproc is needed")
        wait = re.search(r"KillWait\s*=\s*(\d+)", config)
        self._kill_wait = int(wait[1]) if wait else None
        self._version = version

    def _run(self, *command: str, stdin: bytes = b"") -> str:
        """Return the output of a command; raise `SourceError` if the command fails."""
        done = self._command(*command, stdin=stdin)
        if done.returncode:
            raise SourceError(error_text(done))
        return done.stdout.decode(errors="replace")

    def _command(self, *command: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        if self._options.ssh:
            done = run_over_ssh(self._options.ssh, command, stdin=stdin, kept_bytes=MAX_OUTPUT)
        else:
            done = run_command(command, stdin=stdin, kept_bytes=MAX_OUTPUT)
        if len(done.stdout) == MAX_OUTPUT:
            name = command[len(TIMES)] if command[0] == TIMES[0] else command[0]
            raise SourceError(f"{name} wrote more than {MAX_OUTPUT / 1e6:.0f} MB")
        return done


def _job(
    row: _Row, lives: Mapping[int, Sequence[str]], addresses: Mapping[str, tuple[str, ...]]
) -> EngineJob:
    """Describe a job in the form that reports use.

    A requeued job starts again only after each of its nodes has completed or failed. slurmd ends
    processes without a job, so a node that responds has no processes of the job's earlier runs.
    """
    state = STATES.get(row.state, "unknown")
    shown = "" if row.reason == "None" else row.reason
    nodes = (
        EngineNode(
            index=index,
            instance=f"{row.job_id}.{life}.{index}",
            host=host,
            addresses=addresses.get(host, ()),
            gone=life < row.restarts and host in addresses,
        )
        for life, hosts in lives.items()
        for index, host in enumerate(hosts)
    )
    return EngineJob(
        request_id=row.request_id,
        ref=row.job_id,
        state=state,
        gone=state == "ended" and row.state != UNPROVEN,
        reason=shown if state == "pending" and shown else f"{row.state} {shown}".strip(),
        starts_at=row.starts_at,
        ends_at=row.ends_at,
        nodes=tuple(nodes)[-MAX_NODES:],
    )


def _integer(text: str) -> int | None:
    return int(text) if text.isdecimal() else None
