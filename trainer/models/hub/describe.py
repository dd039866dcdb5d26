"""`python -m trainer describe data:NAME`: prints the sections of a job that trains a folder."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from trainer.data.huggingface_tokenizer import FILE as TOKENIZER
from trainer.errors import LaunchError, RunError
from trainer.models.hub.causal_model import load_config, load_model
from trainer.models.hub.counts import count_model
from trainer.models.hub.folder import HubFolder, shape_of
from trainer.run import add_root_argument
from trainyard.base.problems import SpecError
from trainyard.spec.job import parse_job_spec
from trainyard.spec.rules import check_job_spec


def main(words: Sequence[str]) -> int:
    """Print the sections and return 0; on an error, print the error to stderr and return 1."""
    arguments = _parser().parse_args(words)
    try:
        found = describe(arguments.folder, dict(arguments.root), remote_code=arguments.remote_code)
    except (RunError, SpecError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    shown = json.dumps(found, indent=2) if arguments.json else "\n".join(_toml(found))
    sys.stdout.write(f"{shown}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trainer describe",
        description="Print the sections of a job that trains a model of transformers: its shape, "
        "the counts for the planner, weights and tokenizer if the folder has them. No weight is "
        "read.",
    )
    parser.add_argument(
        "folder", help="folder with config.json below a root, such as data:Mistral-7B"
    )
    add_root_argument(parser)
    parser.add_argument(
        "--remote-code", action="store_true", help="run the Python files that config.json names"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of TOML")
    return parser


def describe(place: str, roots: dict[str, str], *, remote_code: bool = False) -> dict[str, Any]:
    """Return the sections `model` and `data` of a job that trains the model in a folder.

    They name the weights and the tokenizer of the folder, if it has any.

    Args:
        place: the folder, as `<root>:<path>`.
        roots: folder of each root.
        remote_code: whether Python files of the folder may run.

    Raises:
        DataError: the folder or its config cannot be read.
        LaunchError: transformers is missing or cannot build or run the model, or no job can train
            it.
        SpecError: `place` is not below a root, or a spec cannot have the shape.
    """
    given: dict[str, Any] = {"hugging_face": place}
    given |= {"remote_code": True} if remote_code else {}
    folder = HubFolder.of(parse_job_spec({"model": given}).model, roots)
    folder.content()
    shape = shape_of(load_config(folder))
    # Before the model is built, because its shape may exceed the limits of a spec.
    check_job_spec(parse_job_spec({"model": given | shape}))
    model = load_model(folder)
    try:
        counted = count_model(model.causal, model.blocks)
    except Exception as error:  # transformers may raise anything
        raise LaunchError(
            f"{folder.field}: nothing is counted: {type(error).__name__}: {error}",
            path=str(folder.path),
        ) from error
    if any(folder.path.glob("*.safetensors")):
        given["initial_weights"] = place
    sections: dict[str, Any] = {
        "model": {**given, **shape, "counted": counted.model_dump(exclude_none=True)}
    }
    if (folder.path / TOKENIZER).is_file():
        sections["data"] = {"tokenizer": "huggingface", "tokenizer_path": place}
    return sections


def _toml(sections: dict[str, Any], path: str = "") -> Iterator[str]:
    # TOML and JSON write strings, integers and booleans alike.
    for name, value in sections.items():
        if not isinstance(value, dict):
            yield f"{name} = {json.dumps(value)}"
    for name, value in sections.items():
        if isinstance(value, dict):
            yield from (f"[{path}{name}]", *_toml(value, f"{path}{name}."), "")
