"""`python -m embedded up | down`: runs the whole control plane on one machine."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from embedded.down import down
from embedded.first_job import INTERRUPTED, FirstJobRequest
from embedded.folders import Folders, default_root
from embedded.up import Options, up
from trainyard.client.errors import NotConfiguredError
from trainyard.client.settings import DEFAULT_PROFILE, choose_profile

STOP_SECONDS = 600.0
UP = "start, keep running, and leave jobs training on Ctrl-C"
DOWN = "save and stop running jobs, then end everything"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit status."""
    parser = _parser()
    given = vars(parser.parse_args(arguments))
    root: Path = given.pop("root").expanduser().absolute()
    if given.pop("command") == "up":
        file, once = given.pop("submit"), given.pop("once")
        if once and file is None:
            parser.error("argument --once: needs --submit")
        job = None if file is None else FirstJobRequest(file or None, end_afterwards=once)
        return up(Options(root, job=job, **given), _tell)
    try:
        return down(Folders(root), _tell, **given)
    except KeyboardInterrupt:
        _tell("Interrupted; `trainyard down` continues from here.")
        return INTERRUPTED


def _tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="trainyard", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    start = commands.add_parser("up", help=UP, description=UP)
    end = commands.add_parser("down", help=DOWN, description=DOWN)
    for command in (start, end):
        command.add_argument(
            "--data",
            dest="root",
            type=Path,
            default=default_root(),
            metavar="DIR",
            help="folder of all its data; default: %(default)s",
        )
    start.add_argument("--host", default="127.0.0.1", help="address to listen on; %(default)s")
    start.add_argument(
        "--port",
        type=partial(_number, most=65_535),
        help="default: the first free port from the last one on, or from 8470 at the first start",
    )
    start.add_argument("--slots", type=_number, metavar="N", help="slots that this machine offers")
    start.add_argument(
        "--open",
        dest="browser",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="open the dashboard in a browser",
    )
    start.add_argument(
        "--profile",
        type=_profile,
        default=os.environ.get("TRAINYARD_PROFILE") or DEFAULT_PROFILE,
        metavar="NAME",
        help="under which the command line keeps address and token; nowhere when empty",
    )
    start.add_argument(
        "--submit",
        nargs="?",
        type=_spec_file,
        const=False,  # a text would go through the type
        metavar="FILE",
        help="submit this spec and follow the job; without FILE the default job, 40 steps of the "
        "debug model",
    )
    start.add_argument(
        "--once",
        action="store_true",
        help="end with the job of --submit and its exit status: 0 succeeded, 1 failed, 2 refused, "
        "3 stopped or cancelled",
    )
    end.add_argument(
        "--keep-running", action="store_true", help="leave jobs training; `up` adopts them again"
    )
    end.add_argument(
        "--timeout",
        dest="timeout_seconds",
        type=_seconds,
        default=STOP_SECONDS,
        metavar="SECONDS",
        help="for jobs to save; %(default)s",
    )
    return parser


def _spec_file(text: str) -> Path:
    if not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"{text} is not a file")
    return Path(text)


def _profile(text: str) -> str | None:
    try:
        choose_profile(text or None)
    except NotConfiguredError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text or None


def _number(text: str, *, most: int | None = None) -> int:
    number = int(text) if text.isdecimal() else 0
    if not 1 <= number <= (most or number):
        legal = f"1 to {most}" if most else "1 or more"
        raise argparse.ArgumentTypeError(f"{text} is not {legal}")
    return number


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:  # NaN fails this comparison too
        raise argparse.ArgumentTypeError(f"{text} is not 0 or more")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
