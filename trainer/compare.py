"""`python -m trainer compare RUN CHECKPOINT`: compares a checkpoint with the model of a run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from trainer.checkpoint.manifest import read_manifest
from trainer.checkpoint.reader.metadata import Comparison, compare, kinds_of
from trainer.checkpoint.reader.storage_reader import CheckedReader, point_at
from trainer.checkpoint.tensors import tied_weights, train_tensors
from trainer.errors import RunError
from trainer.loop.optimizer import build_optimizer, materialize_state
from trainer.models.families import build_model
from trainer.run import add_root_argument, open_run
from trainyard.spec.job import JobSpec


def main(words: list[str]) -> int:
    """Print the differences; return 0 if the checkpoint fits, 1 if it does not, 2 on an error."""
    parser = argparse.ArgumentParser(prog="python -m trainer compare", description=__doc__)
    parser.add_argument("run", type=Path, help="run directory of the job; needs spec.json")
    parser.add_argument("checkpoint", type=Path, help="folder of a committed checkpoint")
    add_root_argument(parser)
    given = parser.parse_args(words)
    try:
        run = open_run(given.run, world_size=None, roots=dict(given.root))
        comparison = compare_with(run.spec, given.checkpoint, run.attempt.roots)
    except RunError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(f"{comparison}\n")
    return 0 if comparison.fits else 1


def compare_with(spec: JobSpec, folder: Path, roots: Mapping[str, str] | None = None) -> Comparison:
    """Compare a job's model and optimizer with a committed checkpoint; read no tensor contents.

    Raises:
        CheckpointError: the checkpoint is missing, not committed, or damaged.
        RunError: the model of the job cannot be built.
    """
    model = build_model(spec, roots)
    reader = CheckedReader(folder, tied=tied_weights(model))
    reader.open(point_at(read_manifest(folder), folder))
    # One rank on the meta device lists the tensors of all ranks and layouts, without memory.
    optimizer = build_optimizer(model, spec)
    materialize_state(optimizer)
    return compare(reader.kinds, kinds_of(train_tensors(model, optimizer)))
