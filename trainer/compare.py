"""`python -m trainer compare RUN CHECKPOINT`: whether a job could go on from a checkpoint."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from trainer.checkpoint.manifest import read_manifest
from trainer.checkpoint.reader.metadata import Comparison, TensorKind, compare, kinds_of
from trainer.checkpoint.reader.storage_reader import CheckedReader, point_at
from trainer.checkpoint.tensors import tied_weights, train_tensors
from trainer.errors import RunError
from trainer.loop.optimizer import build_optimizer, materialize_state
from trainer.models.base import Model
from trainer.models.families import build_model
from trainer.run import named_root, open_run
from trainyard.spec.job import JobSpec


def main(words: list[str]) -> int:
    """Print what differs: 0 when the checkpoint fits, 1 when it does not, 2 when it is none."""
    given = _parser().parse_args(words)
    try:
        run = open_run(given.run, world_size=None, roots=dict(given.root))
        comparison = compare_with(run.spec, given.checkpoint, run.attempt.roots)
    except RunError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(f"{comparison}\n")
    return 0 if comparison.fits else 1


def compare_with(spec: JobSpec, folder: Path, roots: Mapping[str, str] | None = None) -> Comparison:
    """Compare what a job would load with a committed checkpoint, without reading its tensors.

    Raises:
        CheckpointError: it is missing, not committed, or damaged.
        RunError: the job's model cannot be built.
    """
    model = build_model(spec, roots)
    reader = CheckedReader(folder, tied=tied_weights(model))
    reader.look(point_at(read_manifest(folder), folder))
    return compare(reader.metadata, _wanted_by(model, spec))


def _wanted_by(model: Model, spec: JobSpec) -> dict[str, TensorKind]:
    """Return what all ranks of a job would load together, whatever its layout; takes no memory."""
    optimizer = build_optimizer(model, spec)
    materialize_state(optimizer)
    return kinds_of(train_tensors(model, optimizer))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m trainer compare", description=__doc__)
    parser.add_argument("run", type=Path, help="run directory of the job; needs spec.json")
    parser.add_argument("checkpoint", type=Path, help="folder of a committed checkpoint")
    parser.add_argument(
        "--root",
        type=named_root,
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="path of a named root on this machine; may be given again",
    )
    return parser
