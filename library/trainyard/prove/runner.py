"""Runs the ladder against a control plane, and keeps lines and report in a folder."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainyard import __version__
from trainyard.client.errors import (
    ConnectionFailedError,
    ForbiddenError,
    TrainyardError,
    UnauthenticatedError,
    UsageError,
)
from trainyard.client.sdk import Client
from trainyard.protocol.rest.nodes import NodeView
from trainyard.prove.bench import Bench, BenchKeys, CheckError, NotPossibleError, NotRunError
from trainyard.prove.figures import judged
from trainyard.prove.html_report import write_report
from trainyard.prove.ladder import SECONDS, Check, ladder
from trainyard.prove.local_plane import this_machine
from trainyard.prove.proof_lines import Line, ProofRecord, utc_now
from trainyard.spec.auto import DeviceKind

LEAST_SECONDS = 15.0
"""Time that must be left of the limit for a check to start, in seconds."""
ENDING = (ConnectionFailedError, UnauthenticatedError, ForbiddenError)
"""Errors that every later check would meet too, so they end the command."""

logger = logging.getLogger(__name__)


def run_ladder(
    yard: Client,
    record: ProofRecord,
    folder: Path,
    *,
    tell: Callable[[Line], None],
    announce: Callable[[str, int, int], None],
) -> bool:
    """Run the checks that have not passed yet.

    Args:
        yard: connection to the control plane under test.
        record: lines of the folder; the run continues the earlier runs there.
        folder: folder for specs, pictures and report.
        tell: called with the line of each check that has ended.
        announce: called before each check with its name, its number, and the number of all checks.

    Returns:
        Whether every check has passed, apart from layouts and strategies that are not possible.

    Raises:
        UsageError: the online nodes have too few slots, or the folder cannot be written.
        ConnectionFailedError: the server cannot be reached; the same command continues later.
        UnauthenticatedError, ForbiddenError: the token does not permit the calls.
    """
    nodes = [node for node in yard.nodes() if node.online]
    device = _device(nodes, record.subject.slots)
    try:
        record.begin(_facts(yard, record, nodes))
        write_report(folder, record)
        run = _Run(yard, record, folder, device=device)
        checks = ladder(record.subject.slots, device, record.subject.time)
        for number, check in enumerate(checks, start=1):
            seconds = run.seconds_for(check)
            if seconds is not None:
                announce(check.name, number, len(checks))
                line = run.one(check, seconds)
                record.add(line)
                tell(line)
                write_report(folder, record)
    except OSError as error:
        raise UsageError(f"cannot keep results in {folder}: {error.strerror}") from error
    return all(line["status"] in {"passed", "skipped"} for line in record.checks)


class _Run:
    """One run of the command."""

    def __init__(
        self, yard: Client, record: ProofRecord, folder: Path, *, device: DeviceKind
    ) -> None:
        self._yard, self._record, self._folder = yard, record, folder
        self._subject, self._device = record.subject, device
        self._before = {line["check"]: line["status"] for line in record.checks}
        self._ends = time.monotonic() + SECONDS[self._subject.time] - record.seconds

    def seconds_for(self, check: Check) -> float | None:
        """Return the time for a check in seconds: 0 if too little is left, None for no new try.

        There is none after success, and none without time after a failure, which keeps its figures.
        """
        before = self._before.get(check.name)
        if before in {"passed", "skipped"}:
            return None
        left = self._ends - time.monotonic()
        if left >= LEAST_SECONDS:
            return min(check.seconds, left)
        return None if before == "failed" else 0.0

    def one(self, check: Check, seconds: float) -> Line:
        """Run a check within its time; return its line."""
        started = time.monotonic()
        if not seconds:
            return _line(check, started, result=self._no_time())
        bench = self._bench(check, started + seconds)
        return _line(check, started, result=self._result(check, bench), bench=bench)

    def _bench(self, check: Check, deadline: float) -> Bench:
        prefix = f"prove-{self._record.run}-{self._record.facts_digest}"
        return Bench(
            self._yard,
            slots=self._subject.slots,
            device=self._device,
            keys=BenchKeys(
                own=f"{prefix}-{check.name}-{self._record.tries(check.name)}", reference=prefix
            ),
            folder=self._folder,
            deadline=deadline,
        )

    def _result(self, check: Check, bench: Bench) -> Line:
        try:
            return judged(check.run(bench))
        except NotPossibleError as error:
            if check.optional:
                return {"status": "skipped", "reason": str(error)}
            return {"status": "failed", "error": str(error)}
        except NotRunError as error:
            return {"status": "not_run", "reason": str(error)}
        except ENDING:
            raise
        except (CheckError, TrainyardError, TimeoutError) as error:
            if self._ends - time.monotonic() < 1.0:
                return {**self._no_time(), "error": str(error)}
            return {"status": "failed", "error": str(error)}
        except OSError:  # of the folder of results
            raise
        except Exception as error:
            logger.exception("the check %s failed", check.name)
            return {"status": "failed", "error": repr(error)}

    def _no_time(self) -> Line:
        reason = f"the time of the ladder ({self._subject.time}) was over"
        return {"status": "not_run", "reason": reason}


def _line(check: Check, started: float, *, result: Line, bench: Bench | None = None) -> Line:
    return {
        "stage": check.stage,
        "check": check.name,
        "figures": {},
        "bounds": {},
        **result,
        "seconds": round(time.monotonic() - started, 1),
        "findings": [] if bench is None else bench.findings,
        "jobs": [] if bench is None else bench.jobs,
        "commands": [] if bench is None else bench.commands,
        "time": utc_now(),
    }


def _device(nodes: list[NodeView], slots: int) -> DeviceKind:
    """Return the kind of slots to test: GPUs if there are enough of them, else CPU slots.

    Raises:
        UsageError: the online nodes have too few slots of either kind.
    """
    kinds: tuple[DeviceKind, DeviceKind] = ("cuda", "cpu")
    found = {
        kind: sum(node.hardware.slots for node in nodes if node.hardware.device == kind)
        for kind in kinds
    }
    for kind in kinds:
        if found[kind] >= slots:
            return kind
    raise UsageError(
        f"--slots {slots}: the online nodes have {found['cuda']} GPUs and {found['cpu']} CPU slots",
        remedy=f"Give at most {max(found.values())}, or start more nodes.",
    )


def _facts(yard: Client, record: ProofRecord, nodes: list[NodeView]) -> dict[str, Any]:
    """Return the facts on which results depend: server, nodes, their devices and versions."""
    return {
        # The port of a plane of its own may change.
        "server": None if record.subject.local else yard.url,
        "client": __version__,
        # Nodes do not report these; the machine of this command may be another one.
        "host": this_machine() if record.subject.local else {},
        "nodes": [
            {
                "name": node.name,
                "version": node.version,
                "device": node.hardware.device_name,
                "slots": node.hardware.slots,
                "driver": node.hardware.driver,
                "cores": node.hardware.cores,
                "memory_gib": round(node.hardware.memory_bytes / 2**30),
            }
            for node in sorted(nodes, key=lambda node: node.name)
        ],
    }
