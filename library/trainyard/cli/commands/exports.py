"""`export` and `sample`: the weights of a checkpoint as files, or as generated text."""

from __future__ import annotations

from typing import Annotated

import typer

from trainyard.cli.commands.operations import finish
from trainyard.cli.options import Json, Newest, Wait
from trainyard.client.references import newest_checkpoint
from trainyard.client.sdk import Client
from trainyard.protocol.operations import SHARD_GIB


def export(
    reference: Newest,
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", help="float32, bfloat16 or float16; as stored without."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", help="Folder in `exports`; the checkpoint's id and type without."),
    ] = None,
    root: Annotated[
        str | None,
        typer.Option("--root", help="Storage root that gets it; the checkpoint's own without."),
    ] = None,
    shard_gib: Annotated[
        float, typer.Option("--shard-gib", help="Most GiB of tensors in one file.")
    ] = SHARD_GIB,
    wait: Wait = False,
    json: Json = False,
) -> None:
    """Write weights, config and tokenizer of a checkpoint to a folder that `transformers` loads.

    It runs on a node; with --wait the command prints the folder when it is complete. An existing
    folder with the same content is left unchanged.
    """
    with Client() as yard:
        operation = yard.export(
            newest_checkpoint(yard, reference),
            dtype=dtype,
            name=name,
            root=root,
            shard_gib=shard_gib,
        )
        if wait:
            operation = yard.wait_for_operation(operation.id)
    finish(operation, waited=wait, as_json=json)


def sample(
    reference: Newest,
    prompt: Annotated[str, typer.Option("--prompt", "-p", help="Text to begin with.")] = "",
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", help="Most tokens to draw; 200 without.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option("--temperature", help="0 is greedy; 0.7 without.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Of the draws; 0 without.")] = None,
    json: Json = False,
) -> None:
    """Print the prompt and its continuation by the model.

    It runs on a node's CPU, in parallel to training.
    """
    with Client() as yard:
        operation = yard.sample(
            newest_checkpoint(yard, reference),
            prompt,
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
        )
        operation = yard.wait_for_operation(operation.id, poll_seconds=0.2)
    drawn = operation.outcome.sample if operation.outcome else None
    if drawn is None or json:
        finish(operation, waited=True, as_json=json)
    else:
        print(_harmless(drawn.text))


def _harmless(text: str) -> str:
    """Return a text without the control sequences of terminals."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)
