"""`python -m embedded up | down`: the whole control plane on one machine."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from embedded.down import down
from embedded.folders import Folders, default_root
from embedded.up import Options, up
from trainyard.client.errors import NotConfiguredError
from trainyard.client.settings import DEFAULT_PROFILE, choose_profile

STOP_SECONDS = 600.0
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    given = _parser().parse_args(arguments)
    root: Path = given.data.expanduser().absolute()
    if given.command == "down":
        try:
            return down(
                Folders(root), _tell, keep_running=given.keep_running, timeout_seconds=given.timeout
            )
        except KeyboardInterrupt:
            _tell("Interrupted; `trainyard down` continues from here.")
            return INTERRUPTED
    return up(
        Options(
            root=root,
            host=given.host,
            port=given.port,
            slots=given.slots,
            browser=given.open,
            profile=given.profile,
        ),
        _tell,
    )


def _tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="trainyard", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    start = commands.add_parser("up", help="start, keep running, and leave jobs training on Ctrl-C")
    end = commands.add_parser("down", help="save and stop running jobs, then end everything")
    for command in (start, end):
        command.add_argument(
            "--data", type=Path, default=default_root(), metavar="DIR", help="default: %(default)s"
        )
    start.add_argument("--host", default="127.0.0.1", help="address to listen on; %(default)s")
    start.add_argument("--port", type=_port, help="default: as last time, else the next from 8470")
    start.add_argument("--slots", type=int, metavar="N", help="slots that this machine offers")
    start.add_argument(
        "--open", action=argparse.BooleanOptionalAction, default=False, help="open the dashboard"
    )
    start.add_argument(
        "--profile",
        type=_profile,
        default=os.environ.get("TRAINYARD_PROFILE") or DEFAULT_PROFILE,
        metavar="NAME",
        help="under which the command line keeps address and token; nowhere when empty",
    )
    end.add_argument("--keep-running", action="store_true", help="leave jobs training")
    end.add_argument(
        "--timeout", type=float, default=STOP_SECONDS, metavar="SECONDS", help="for jobs to save"
    )
    return parser


def _profile(text: str) -> str | None:
    try:
        choose_profile(text or None)
    except NotConfiguredError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text or None


def _port(text: str) -> int:
    port = int(text)
    if not 1 <= port <= 65_535:
        raise argparse.ArgumentTypeError(f"{port} is not 1 to 65535")
    return port


if __name__ == "__main__":
    sys.exit(main())
