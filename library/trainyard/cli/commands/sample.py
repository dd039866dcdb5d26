"""`sample`: a text from a checkpoint."""

from __future__ import annotations

from typing import Annotated

import typer

from trainyard.cli.commands.operations import finish
from trainyard.cli.options import Json, Newest
from trainyard.client.references import newest_checkpoint
from trainyard.client.sdk import Client


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(short_help="Draw a text from a checkpoint.")(sample)


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
    """Print the prompt and what the model writes after it.

    A node draws it on its CPU, beside what trains there.
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
    """Return a text without what a terminal would take for an order."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)
