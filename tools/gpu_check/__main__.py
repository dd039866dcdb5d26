"""Command line: check the trainer on this machine's GPU."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.gpu_check.check import run_check
from tools.gpu_check.plan import STAGES, named_stages
from tools.gpu_check.runner import run_stages


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit status: 1 if a check failed, 2 for an invalid command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_check", description=__doc__)
    parser.add_argument(
        "--to", type=Path, metavar="DIR", help="folder of the lines; what passed there is not rerun"
    )
    parser.add_argument(
        "--stages",
        default=",".join(STAGES),
        metavar="A,B",
        help=f"stages to run, all without it: {', '.join(STAGES)}",
    )
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="device under test"
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        metavar="N",
        help="concurrent checks, except those that measure time; %(default)s",
    )
    # How the runner starts one check.
    parser.add_argument("--here", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.here is not None:
        run_check(**given.here)
        return 0
    if given.to is None:
        parser.error("--to is needed")
    try:
        stages = named_stages(given.stages)
    except ValueError as error:
        parser.error(f"--stages: {error}")
    if given.jobs < 1:
        parser.error(f"--jobs: {given.jobs} is no number of checks; legal: 1 or more")
    return 0 if run_stages(stages, given.to, given.device, jobs=given.jobs) else 1


if __name__ == "__main__":
    sys.exit(main())
