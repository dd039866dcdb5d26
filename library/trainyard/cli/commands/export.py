"""`export`: a checkpoint's weights for other programs."""

from __future__ import annotations

from typing import Annotated

import typer

from trainyard.cli.commands.operations import finish
from trainyard.cli.options import Json, Newest, Wait
from trainyard.client.references import newest_checkpoint
from trainyard.client.sdk import Client
from trainyard.protocol.operations import SHARD_GIB


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(short_help="Write a checkpoint as Hugging Face's libraries read it.")(export)


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

    A node does it; with --wait the folder is named when it is there. One that holds the same
    already is left as it is.
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
