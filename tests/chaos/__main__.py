"""Strikes a running job with each kind of fault, judges its end, and writes docs/chaos.md.

`make chaos` runs it. Results are kept in a file, one JSON line a case, so that a run that was
interrupted goes on where it stood; `--again` forgets them.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.chaos.case import STRIKE_AT, Case, Predicted, judge
from tests.chaos.cluster import Cluster
from tests.chaos.faults import FAULTS, Fault
from tests.chaos.matrix import Result, write_matrix
from tests.chaos.network import isolate
from tests.e2e.control_plane import Course

RESULTS = Path(".chaos") / "results.jsonl"
SLOTS = {"n1": 2, "n2": 2, "n3": 2}

logger = logging.getLogger("chaos")


def main() -> int:
    """Run the cases that have no result yet; return 1 where one does not pass."""
    arguments = _parser().parse_args()
    isolate()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    results: Path = arguments.results
    if arguments.again:
        results.unlink(missing_ok=True)
    done = {result.name for result in read(results) if result.passed}
    chosen = [fault for fault in FAULTS.values() if fault.name in (arguments.faults or FAULTS)]
    due = [fault for fault in chosen if fault.name not in done]
    results.parent.mkdir(parents=True, exist_ok=True)
    if due:
        with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
            run_all(due, Path(folder), results, seconds=arguments.seconds)
    found = {result.name: result for result in read(results)}
    write_matrix(found)
    for name in FAULTS:
        if name in found:
            sys.stdout.write(json.dumps(asdict(found[name])) + "\n")
    return int(any(not found[f.name].passed for f in chosen if f.name in found))


def run_all(faults: Sequence[Fault], folder: Path, results: Path, *, seconds: float) -> None:
    """Run cases on one cluster, for at most so long; after a case that fails on a new one."""
    deadline = time.monotonic() + seconds
    waiting = list(faults)
    while waiting and time.monotonic() < deadline:
        root = folder / str(len(waiting))
        with Cluster.running(root, SLOTS) as cluster:
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
    try:
        case = Case.submitted(cluster, fault.name.replace("_", "-"), **fault.retry)
        case.run(0).wait_for_step(STRIKE_AT)
        fault.strike(case)
        judge(case, fault.predicted, undisturbed)
        shutil.rmtree(cluster.checkpoints / case.job_id)  # the disk holds those of some twenty jobs
    except Exception as error:  # noqa: BLE001 - every end of a case is a result
        logger.info("%s", traceback.format_exc())
        problem = f"{type(error).__name__}: {error}"[:2000]
    result = Result(fault.name, not problem, round(time.monotonic() - started, 1), problem)
    logger.info("%s: %s in %s s", fault.name, problem or "as predicted", result.seconds)
    return result


def read(results: Path) -> list[Result]:
    """Return the results that are kept."""
    if not results.exists():
        return []
    return [Result(**json.loads(line)) for line in results.read_text().splitlines()]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("faults", nargs="*", help=f"all when absent: {', '.join(FAULTS)}")
    parser.add_argument("--again", action="store_true", help="forget former results")
    parser.add_argument("--results", type=Path, default=RESULTS, help="%(default)s")
    parser.add_argument("--seconds", type=float, default=3600.0, help="longest run; %(default)s")
    return parser


if __name__ == "__main__":
    sys.exit(main())
