"""`python -m trainer describe models:NAME`: prints the section `model` of a job for a folder."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from trainer.errors import LaunchError, RunError
from trainer.models.hub.causal_model import load_model
from trainer.models.hub.counts import count_model
from trainer.models.hub.folder import HubFolder, shape_of
from trainer.run import add_root_argument
from trainyard.spec.sections.model import ModelSection


def main(words: Sequence[str]) -> int:
    """Print the section and return 0; on an error, print the error to stderr and return 1."""
    arguments = _parser().parse_args(words)
    try:
        section = describe(
            arguments.folder, dict(arguments.root), remote_code=arguments.remote_code
        )
    except RunError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    shown = (
        json.dumps({"model": section}, indent=2) if arguments.json else "\n".join(_toml(section))
    )
    sys.stdout.write(f"{shown}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trainer describe",
        description="Print the section `model` of a job that trains a model of transformers: the "
        "shape, and the counts for the planner. No weight is read.",
    )
    parser.add_argument("folder", help="folder with config.json, such as models:Mistral-7B")
    add_root_argument(parser)
    parser.add_argument(
        "--remote-code", action="store_true", help="run the Python files that config.json names"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of TOML")
    return parser


def describe(place: str, roots: dict[str, str], *, remote_code: bool = False) -> dict[str, Any]:
    """Return the fields of the section `model` that train the model in a folder.

    Args:
        place: the folder, as `<root>:<path>`.
        roots: folder of each root.
        remote_code: whether Python files of the folder may run.

    Raises:
        ValidationError: `place` does not have the form `<root>:<path>`.
        DataError: the folder or its config cannot be read.
        LaunchError: transformers is missing or cannot build or run the model, or no job can train
            it.
    """
    section = ModelSection(hugging_face=place, remote_code=remote_code)
    folder = HubFolder.of(section, roots)
    model = load_model(folder)
    if not model.blocks:
        raise LaunchError(
            f"{folder.field}: the architecture publishes no blocks (_no_split_modules), so nothing "
            "is counted",
            path=str(folder.path),
        )
    shape = shape_of(model.causal.config)
    try:
        counted = count_model(model.causal, model.blocks)
    except Exception as error:  # transformers may raise anything
        raise LaunchError(
            f"{folder.field}: the model cannot run on the meta device, so nothing is counted: "
            f"{type(error).__name__}: {error}",
            path=str(folder.path),
        ) from error
    given = section.model_dump(exclude_defaults=True)
    return {**given, **shape, "counted": counted.model_dump(exclude_none=True)}


def _toml(section: dict[str, Any]) -> Iterator[str]:
    # TOML and JSON write strings, integers and booleans alike.
    yield "[model]"
    for name, value in section.items():
        if not isinstance(value, dict):
            yield f"{name} = {json.dumps(value)}"
    yield from ("", "[model.counted]")
    yield from (f"{name} = {json.dumps(value)}" for name, value in section["counted"].items())
