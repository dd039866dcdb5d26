"""Command line: `torchrun ... -m trainer <run>` trains an attempt.

python -m trainer check <run> [--alongside]             checks a run before or while its ranks start
python -m trainer export <checkpoint> --to <folder>     writes the weights in the hub's format
python -m trainer compare <run> <checkpoint>            compares a checkpoint with a run's model
python -m trainer describe models:<folder>              prints the section `model` of a hub model
python -m trainer dcp-metadata <checkpoint>             writes the index that `dcp.load` needs
python -m trainer convert-torchtitan <step> ...         converts a checkpoint of torchtitan
python -m trainer.operations <folder>                   runs an operation, started by a worker
torchrun ... -m trainer.rank_probe                      measures each rank of a launch
python -m trainer identify s3://<bucket>/<prefix>       prints the UUID of a storage root
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from trainer.check import check_run
from trainer.errors import LaunchError, RunError
from trainer.metrics.rank_position import write_position_when_asked
from trainer.metrics.run_writer import RunWriter, write_check_error
from trainer.process import (
    die_with_parent,
    importing_without_collector,
    leave,
    prefer_growing_segments,
    stop_on_sigterm,
)
from trainer.run import add_root_argument, forget_check, open_run, refuse_used
from trainyard.base.file_limit import raise_file_limit
from trainyard.run.directory import Phase, RunDirectory
from trainyard.run.failures import Failure, FailureReason
from trainyard.spec.environment import plain_variables

INTERRUPTED = 130  # a shell's exit code after Ctrl-C: 128 + SIGINT

logger = logging.getLogger("trainer")

# Importing torch takes seconds. The first heartbeat and the checks do not need torch, so only
# `preload` and some commands import it.


def preload() -> None:
    """Import every module that ranks need; called once in a process, before it forks ranks.

    Also build validators and list the installed packages. The first rank of a node records the
    list.
    """
    _import_torch()
    from trainer.provenance import installed_packages
    from trainyard.base.model_base import build_validators

    installed_packages()
    build_validators()


def _import_torch() -> None:
    """Import torch and the trainer; environment variables for torch must be set before the call."""
    prefer_growing_segments(os.environ)
    with importing_without_collector():
        import torch._dynamo  # noqa: F401 (otherwise imported in the first step, with the GC on)

        import trainer.loop.train  # noqa: F401


def enter() -> NoReturn:
    """Run the command line in `sys.argv`, and end this process with its exit code."""
    leave(main())


def main() -> int:
    """Run the command line; return 0 if the run succeeded or was stopped, `INTERRUPTED` after
    Ctrl-C, and otherwise 1; `compare` returns 2 on an error."""
    match sys.argv[1:]:
        case ["export", *words]:
            from trainer.hugging_face.export import main as export

            return export(words)
        case ["compare", *words]:
            from trainer.compare import main as compare

            return compare(words)
        case ["describe", *words]:
            from trainer.models.hub.describe import main as describe

            return describe(words)
        case ["dcp-metadata", *words]:
            from trainer.operations.metadata_file import main as write_dcp_metadata

            return write_dcp_metadata(words)
        case ["convert-torchtitan", *words]:
            from trainer.titan_import.convert import main as convert_torchtitan

            return convert_torchtitan(words)
        case ["identify", url]:
            from trainer.identify import main as identify

            return identify(url)
        case words:
            return _launch(words)


def _launch(words: Sequence[str]) -> int:
    checking = words[:1] == ["check"]
    arguments = _parser().parse_args(words[1:] if checking else words)
    roots = dict(arguments.root)
    rank, local_rank = int(os.environ.get("RANK", "0")), int(os.environ.get("LOCAL_RANK", "0"))
    logging.basicConfig(
        level=logging.INFO if rank == 0 else logging.WARNING,
        format=f"%(asctime)s rank {rank} %(levelname)s %(message)s",
    )
    if arguments.verbose:
        logger.setLevel(logging.DEBUG)
    directory = RunDirectory(arguments.run.resolve())
    writer = RunWriter(directory, rank=rank, local_rank=local_rank)
    if checking and arguments.alongside:
        return _recorded(
            lambda: check_run(arguments.run, roots=roots),
            record=lambda error: write_check_error(directory, error),
        )
    try:
        if checking:
            forget_check(directory)
        refuse_used(directory)
    except LaunchError as error:
        logger.error("%s", error)
        return 1
    if checking:
        return _recorded(lambda: check_run(arguments.run, roots=roots), record=writer.fail)
    return _recorded(lambda: _train(arguments.run, roots, writer), record=writer.fail)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trainer",
        usage="torchrun --nproc-per-node=N -m trainer RUN [--root NAME=PATH] [--verbose]\n"
        "       python -m trainer check RUN [--root NAME=PATH] [--alongside]\n"
        "       python -m trainer export CHECKPOINT --to FOLDER\n"
        "       python -m trainer compare RUN CHECKPOINT [--root NAME=PATH]\n"
        "       python -m trainer describe FOLDER [--root NAME=PATH] [--remote-code] [--json]\n"
        "       python -m trainer dcp-metadata CHECKPOINT\n"
        "       python -m trainer convert-torchtitan STEP --spec SPEC --to ROOT",
        description="Train one attempt of a job, or check it before its ranks start.",
    )
    parser.add_argument("run", type=_folder, help="run directory; needs spec.json")
    add_root_argument(parser)
    parser.add_argument(
        "--verbose", action="store_true", help="log each phase of a save on every rank"
    )
    parser.add_argument(
        "--alongside",
        action="store_true",
        help="with check: the ranks of the run start meanwhile; an error goes to check_error.json",
    )
    return parser


def _folder(text: str) -> Path:
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is no folder; make it, with spec.json in it")
    return Path(text)


def _recorded(action: Callable[[], None], *, record: Callable[[BaseException], Failure]) -> int:
    """Run `action` and return the exit code; an error goes to the log and the run directory."""
    try:
        action()
    except KeyboardInterrupt:  # Ctrl-C in a terminal is no failure of the run
        return INTERRUPTED
    except RunError as error:  # the log needs only the message; the record has the traceback
        logger.error("%s: %s", error.reason.value, error)
        return _failed(error, record)
    except BaseException as error:  # record any error that ends the run
        logger.exception("the run failed")
        return _failed(error, record)
    return 0


def _failed(error: BaseException, record: Callable[[BaseException], Failure]) -> int:
    try:
        failure = record(error)
    except OSError:
        logger.exception("the failure could not be recorded")
    else:
        if failure.reason == FailureReason.HANG:  # the supervisor collects other ranks' stacks
            faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
    return 1


def _train(folder: Path, roots: Mapping[str, str], writer: RunWriter) -> None:
    if "RANK" in os.environ:
        die_with_parent()
    directory = RunDirectory(folder.resolve())
    rank = int(os.environ.get("RANK", "0"))
    write_position_when_asked(directory, rank=rank, step=lambda: writer.step)
    stop_on_sigterm(directory)
    raise_file_limit()
    writer.enter(Phase.STARTING)
    # Without torchrun this process is the only rank, regardless of `resources.world_size`.
    run = open_run(folder, world_size=int(os.environ.get("WORLD_SIZE", "1")), roots=roots)
    os.environ.update(
        plain_variables(run.spec.env)
    )  # before torch is imported, which reads these variables
    _import_torch()
    from trainer.loop.train import train

    outcome = train(run, writer)
    logger.info("%s at step %d", outcome.outcome, outcome.step)


if __name__ == "__main__":
    enter()
