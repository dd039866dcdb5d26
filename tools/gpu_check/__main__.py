"""Command line: check the trainer on this machine's GPU, or collect the wheels that it lacks."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.gpu_check.bundle import collect
from tools.gpu_check.check import Here, call, write_result
from tools.gpu_check.plan import STAGES, named_stages
from tools.gpu_check.runner import run_stages


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit status: 1 when a check has failed, 2 for a command line that is none."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.bundle is not None:
        collect(given.bundle, python=given.python, platforms=given.platform)
        return 0
    if given.here is not None:
        here = Here(given.device, given.scratch, given.lines)
        write_result(call(given.here, here, json.loads(given.arguments)), given.scratch)
        return 0
    if given.to is None:
        parser.error("--to or --bundle is needed")
    try:
        stages = named_stages(given.stages)
    except ValueError as error:
        parser.error(f"--stages: {error}")
    return 0 if run_stages(stages, given.to, given.device) else 1


def _parser() -> argparse.ArgumentParser:
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
        "--bundle", type=Path, metavar="DIR", help="download the wheels that a machine may lack"
    )
    parser.add_argument("--python", default="3.12", help="Python of that machine, such as 3.12")
    parser.add_argument(
        "--platform",
        action="append",
        default=[],
        metavar="TAG",
        help="platform of that machine; without it x86-64 Linux with glibc 2.28",
    )
    # How the runner starts one check.
    parser.add_argument("--here", help=argparse.SUPPRESS)
    parser.add_argument("--arguments", default="{}", help=argparse.SUPPRESS)
    parser.add_argument("--scratch", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--lines", type=Path, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
