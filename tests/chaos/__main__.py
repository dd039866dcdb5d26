"""Strikes running jobs with faults, judges their ends, and writes docs/chaos.md.

`make chaos` runs it. Results are kept in a file, one JSON line a case. A case that passed with the
programs as they are now is not run again, so that an interrupted run goes on where it stood;
`--again` runs it all the same.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path

from tests.chaos.case import Case, Predicted, judge
from tests.chaos.cluster import Cluster, Setup
from tests.chaos.combinations import drawn
from tests.chaos.fault import FAULTS, Fault
from tests.chaos.faults import MODULES
from tests.chaos.matrix import Result, read, write_page
from tests.chaos.network import isolate
from tests.chaos.transient_errors import measure
from tests.e2e.control_plane import REPOSITORY, Course
from trainyard.client.errors import TrainyardError

RESULTS = Path(__file__).with_name("results.jsonl")
CHANGED = "+"
"""Mark behind a commit with changes that are not committed."""
SLOTS = {"n1": 2, "n2": 2, "n3": 2}
LATEST_WITH_STAND_INS, LATEST = 8.0, 18.0
"""Seconds after the submission at which the last fault of a combination may begin: a job runs
for as long."""

logger = logging.getLogger("chaos")


def main() -> int:
    """Run the cases that have no result yet; return 1 unless each has passed."""
    arguments = _parser().parse_args()
    isolate()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    results: Path = arguments.results
    if arguments.errors:
        with (
            tempfile.TemporaryDirectory(prefix="chaos-") as folder,
            Cluster.running(Path(folder) / "cluster", SLOTS, Setup(stand_in=True)) as cluster,
        ):
            measured = measure(cluster, errors=arguments.errors)
        sys.stdout.write(json.dumps(measured | {"commit": _commit()}) + "\n")
        return int(measured["ended"] > 0)
    chosen, commit = list(_chosen(arguments)), _commit()
    kept = read(results).items()
    done = {key for key, result in kept if result.passed and result.commit == commit}
    again = arguments.again or commit.endswith(CHANGED)
    due = [fault for fault in chosen if again or _key(fault) not in done]
    deadline = time.monotonic() + 60 * arguments.minutes
    for setup, faults in groupby(sorted(due, key=_order), key=lambda fault: fault.setup):
        if setup.missing:
            logger.warning("%s is not here: %s", setup.missing, [each.name for each in faults])
            continue
        with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
            run_all(list(faults), setup, folder=Path(folder), results=results, deadline=deadline)
    found = read(results)
    if arguments.write:
        write_page(found)
        newest = (json.dumps(asdict(result)) for _, result in sorted(found.items()))
        results.write_text("".join(f"{line}\n" for line in newest))
    passed = 0
    for fault in chosen:
        result = found.get(_key(fault))
        if result is not None and result.commit == commit:
            sys.stdout.write(json.dumps(asdict(result)) + "\n")
            passed += result.passed
    return int(passed < len(chosen))


def run_all(
    faults: Sequence[Fault], setup: Setup, *, folder: Path, results: Path, deadline: float
) -> None:
    """Run cases on one cluster until a deadline; after a case that fails on a new one."""
    waiting = list(faults)
    while waiting and time.monotonic() < deadline:
        root = folder / str(len(waiting))
        with Cluster.running(root, SLOTS, setup) as cluster:
            logger.info("the cluster is up: %s", cluster.url)
            undisturbed = judge(Case.submitted(cluster, "undisturbed"), Predicted(), None)
            while waiting and time.monotonic() < deadline:
                result = run_one(waiting.pop(0), cluster, undisturbed)
                with results.open("a") as file:
                    file.write(json.dumps(asdict(result)) + "\n")
                if not result.passed:
                    logger.info("%s", cluster.log_tails())
                    break


def run_one(fault: Fault, cluster: Cluster, undisturbed: Course) -> Result:
    """Strike a job of its own with a fault, and return how that ended."""
    started = time.monotonic()
    problem = ""
    logger.info("%s: %s", fault.name, fault.text)
    try:
        case = Case.submitted(cluster, fault.name.replace("_", "-"), fault.job)
        with case.cleanup:
            if fault.after_step:
                case.run(0).wait_for_step(fault.after_step)
            fault.strike(case)
            judge(case, fault.predicted, undisturbed)
        shutil.rmtree(cluster.checkpoints / case.job_id)  # the disk holds those of some twenty jobs
    except Exception as error:  # noqa: BLE001 - every end of a case is a result
        logger.info("%s", traceback.format_exc())
        problem = f"{type(error).__name__}: {error}"[:2000]
        with contextlib.suppress(TrainyardError):
            logger.info("%s", cluster.waiting())
    result = Result(
        fault.name,
        not problem,
        round(time.monotonic() - started, 1),
        problem,
        commit=_commit(),
        text=fault.text,
        real=not cluster.setup.stand_in,
    )
    logger.info("%s: %s in %s s", fault.name, problem or "as predicted", result.seconds)
    return result


def _chosen(arguments: argparse.Namespace) -> Iterator[Fault]:
    """Return the faults that the arguments name."""
    setup = Setup(stand_in=not arguments.real)
    latest = LATEST if arguments.real else LATEST_WITH_STAND_INS
    numbers = arguments.only or range(arguments.random)
    for number in numbers:
        yield replace(drawn(arguments.seed, number, latest=latest), setup=setup)
    if arguments.faults or not numbers:
        for name, fault in FAULTS.items():
            if name in (arguments.faults or FAULTS):
                yield replace(fault, setup=replace(fault.setup, stand_in=arguments.stand_in))


def _key(fault: Fault) -> tuple[str, bool]:
    return fault.name, not fault.setup.stand_in


def _order(fault: Fault) -> tuple[bool, ...]:
    return (fault.setup.stand_in, fault.setup.postgresql, fault.setup.preloaded)


def _commit() -> str:
    """Return the commit of the programs that run; a mark follows where they were changed since."""
    programs = ("library", "server", "trainer", "worker")

    def git(*arguments: str) -> str:
        command = ("git", *arguments, "--", *programs)
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    newest = git("log", "-1", "--format=%h", "--abbrev=8")
    return f"{newest}{CHANGED}" if git("status", "--porcelain") else newest


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("faults", nargs="*", help=f"all when absent: {', '.join(FAULTS)}")
    parser.add_argument("--stand-in", action="store_true", help="ranks of the standard library")
    parser.add_argument("--random", type=int, default=0, help="run so many combinations instead")
    parser.add_argument("--seed", type=int, default=0, help="seed of the combinations")
    parser.add_argument("--only", type=int, nargs="+", help="run the combinations of these numbers")
    parser.add_argument("--real", action="store_true", help="combinations with the real trainer")
    parser.add_argument(
        "--errors", type=int, default=0, help="count jobs that end by so many failing requests"
    )
    parser.add_argument("--again", action="store_true", help="run what has passed as well")
    parser.add_argument("--results", type=Path, default=RESULTS, help="%(default)s")
    parser.add_argument("--minutes", type=float, default=60.0, help="longest run; %(default)s")
    parser.add_argument("--write", action="store_true", help="write docs/chaos.md")
    return parser


assert MODULES, "they register the faults"

if __name__ == "__main__":
    sys.exit(main())
