"""Command line: `python -m worker` serves a node, `python -m worker supervise` one share."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from functools import partial
from pathlib import Path
from typing import NoReturn

logger = logging.getLogger("worker")

# Each command has its own imports. A fork must precede the threads that an import may start, and
# the worker waits until the first process of `supervise` has ended.


def main() -> int:
    """Run one command of the worker."""
    arguments = _parser().parse_args()
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)  # httpx logs every report
    if arguments.command == "supervise":
        return _supervise(arguments.run, arguments.lock, arguments.why_cold)
    if arguments.command == "idle":
        _idle(arguments)
    if arguments.command == "operation":
        return _operation(arguments.folder)
    if arguments.command == "init":
        from worker.init import Init

        return Init().run()
    if arguments.command in ("pilot", "probe"):
        return _pilot(arguments.command)
    return _serve()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m worker",
        description="The worker of one node; settings are TRAINYARD_* environment variables.",
    )
    commands = parser.add_subparsers(dest="command")
    supervise = commands.add_parser("supervise", help="own one torchrun (started by the worker)")
    supervise.add_argument("run", type=Path, help="run directory")
    supervise.add_argument("--lock", type=int, required=True, help="file descriptor of the lock")
    supervise.add_argument("--why-cold", default="", help="why its ranks cannot be forked")
    idle = commands.add_parser("idle", help="wait for launches (started by the worker)")
    idle.add_argument("data_dir", type=Path, help="data folder of the node")
    for name in ("worker-pid", "worker-start", "status"):
        idle.add_argument(f"--{name}", type=int, required=True)
    operation = commands.add_parser(
        "operation", help="own the command of an operation (started by the worker)"
    )
    operation.add_argument("folder", type=Path, help="folder of the operation")
    commands.add_parser("pilot", help="a node inside another engine's allocation")
    commands.add_parser("probe", help="check such an allocation, report the findings and end")
    commands.add_parser("init", help="first process of a container: reaps, restarts, drains")
    return parser


def _serve() -> int:
    from trainyard.protocol.rest.errors import ApiError
    from worker.serve import serve

    try:
        serve()
    except (ValueError, ApiError) as error:
        logger.error("%s", error)
        return 2
    return 0


def _pilot(command: str) -> int:
    if command == "probe":
        os.environ["TRAINYARD_PILOT_PURPOSE"] = "check"
    from trainyard.protocol.rest.errors import TrainyardError
    from worker.pilot.start import run_pilot

    try:
        return run_pilot()
    except (ValueError, TrainyardError) as error:
        logger.error("%s", error)
        return 2


def _supervise(folder: Path, lock_fd: int, why_cold: str) -> int:
    """Detach, then supervise the attempt until it has ended."""
    _detach()
    from worker.launchers.program_launcher import launcher_for
    from worker.supervisor.supervise import run_detached

    run_detached(folder.resolve(), lock_fd, partial(launcher_for, why_cold=why_cold))
    return 0


def _idle(arguments: argparse.Namespace) -> NoReturn:
    """Detach, then wait for launches; for each launch, fork a child that becomes its supervisor."""
    _detach()
    from worker.node.node_store import NodeStore
    from worker.warm.idle import IdleSettings, run_idle

    settings = IdleSettings(
        worker_pid=arguments.worker_pid,
        worker_start=arguments.worker_start,
        status=arguments.status,
    )
    run_idle(NodeStore(arguments.data_dir), settings)


def _detach() -> None:
    """Continue in a forked child; the parent, whose exit the worker awaits, exits immediately."""
    if os.fork():
        os._exit(0)
    os.setsid()  # training must not get signals to the worker's process group


def _operation(folder: Path) -> int:
    """Detach, then supervise the operation until it has ended."""
    _detach()
    from worker.operations import run_detached_operation

    return run_detached_operation(folder.resolve())


if __name__ == "__main__":
    sys.exit(main())
