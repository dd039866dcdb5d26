"""Command line: `torchrun ... -m trainer <run>` trains, `python -m trainer check <run>` looks.

`python -m trainer export <checkpoint> --to <folder>` writes its weights for other programs;
`python -m trainer compare <run> <checkpoint>` says whether the run could go on from it;
`python -m trainer verify | scrub | delete | export | sample <folder>` is what a worker starts;
`python -m trainer identify s3://<bucket>/<prefix>` tells a worker which storage that is.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from trainer.check import check_run
from trainer.errors import LaunchError, RunError
from trainer.metrics.run_writer import RunWriter
from trainer.operations.main import main as do_operation
from trainer.process import (
    collector_resting,
    die_with_parent,
    leave,
    prefer_growing_segments,
    show_stacks_when_asked,
    stop_on_sigterm,
)
from trainer.run import forget_check, named_root, open_run, refuse_used
from trainyard.base.file_limit import raise_file_limit
from trainyard.protocol.operations import TASK, OperationKind
from trainyard.run.directory import Phase, RunDirectory
from trainyard.run.failures import FailureReason

OPERATIONS = [[kind.value] for kind in OperationKind]
INTERRUPTED = 130  # what a shell reports after Ctrl-C

logger = logging.getLogger("trainer")

# torch is imported by `_train` alone: the first heartbeat and the checks need not wait for it.


def main() -> int:
    """Run the command line; 0 when the run succeeded or was stopped, 1 when it failed."""
    words = sys.argv[1:]
    if words[:1] == ["export"] and not _is_operation(words[1:]):
        return _export(words[1:])
    if words[:1] in OPERATIONS and len(words) == 2:
        return do_operation(OperationKind(words[0]), words[1:])
    if words[:1] == ["compare"]:
        return _compare(words[1:])
    if words[:1] == ["identify"] and len(words) == 2:
        return _identify(words[1])
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
    recorder = RunWriter(directory, rank=rank, local_rank=local_rank)
    try:
        if checking:
            forget_check(directory)
        refuse_used(directory)
    except LaunchError as error:
        logger.error("%s", error)
        return 1
    if checking:
        return _recorded(recorder, lambda: check_run(arguments.run, roots=roots))
    return _recorded(recorder, lambda: _train(arguments.run, roots, recorder))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trainer",
        usage="torchrun --nproc-per-node=N -m trainer RUN [--root NAME=PATH] [--verbose]\n"
        "       python -m trainer check RUN [--root NAME=PATH]\n"
        "       python -m trainer export CHECKPOINT --to FOLDER\n"
        "       python -m trainer compare RUN CHECKPOINT [--root NAME=PATH]",
        description="Train one attempt of a job, or check it before its ranks start.",
    )
    parser.add_argument("run", type=_folder, help="run directory; needs spec.json")
    parser.add_argument(
        "--root",
        type=named_root,
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="path of a named root on this machine; may be given again",
    )
    parser.add_argument(
        "--verbose", action="store_true", help="log each point that a save passes, on every rank"
    )
    return parser


def _is_operation(words: list[str]) -> bool:
    """Whether these words name the folder of an operation, and no checkpoint to export by hand."""
    return len(words) == 1 and (Path(words[0]) / TASK).exists()


def _export(words: list[str]) -> int:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    from trainer.hugging_face.export import main as export

    return export(words)


def _identify(url: str) -> int:
    from trainer.identify import main as identify

    return identify(url)


def _compare(words: list[str]) -> int:
    from trainer.compare import main as compare

    return compare(words)


def _folder(text: str) -> Path:
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is no folder; make it, with spec.json in it")
    return Path(text)


def _recorded(recorder: RunWriter, action: Callable[[], None]) -> int:
    """Run `action`; what it raises goes to the log and into the run directory."""
    try:
        action()
    except KeyboardInterrupt:  # somebody at a terminal: no failure to record
        return INTERRUPTED
    except RunError as error:  # says what is wrong; its traceback goes into the record
        logger.error("%s: %s", error.reason.value, error)
        return _failed(recorder, error)
    except BaseException as error:  # DCP's own exception is no `Exception`
        logger.exception("the run failed")
        return _failed(recorder, error)
    return 0


def _failed(recorder: RunWriter, error: BaseException) -> int:
    try:
        failure = recorder.fail(error)
    except OSError:
        logger.exception("nor could the failure be recorded")
    else:
        if failure.reason == FailureReason.HANG:  # of the others the supervisor asks theirs
            faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
    return 1


def _train(folder: Path, roots: Mapping[str, str], recorder: RunWriter) -> None:
    if "RANK" in os.environ:
        die_with_parent()
    show_stacks_when_asked()
    stop_on_sigterm(RunDirectory(folder.resolve()))
    raise_file_limit()
    recorder.enter(Phase.STARTING)
    # Without torchrun this process is the only rank, whatever the spec asks for.
    run = open_run(folder, world_size=int(os.environ.get("WORLD_SIZE", "1")), roots=roots)
    os.environ.update(run.spec.env)  # before torch reads its part of it
    prefer_growing_segments(os.environ)
    with collector_resting():
        import torch._dynamo  # noqa: F401 (the model's or the optimizer's first call would)

        from trainer.loop.train import train

    outcome = train(run, recorder)
    logger.info("%s at step %d", outcome.outcome, outcome.step)


if __name__ == "__main__":
    leave(main())
