"""`operations`, `export` and `sample`: operations on checkpoints, with progress and outcome."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from trainyard.base.ids import is_id
from trainyard.cli import formats
from trainyard.cli.errors import FAILED
from trainyard.cli.listings import SHORT_ID
from trainyard.cli.options import Json, Limit, Newest, Wait
from trainyard.cli.output import at_most, emit, state_text
from trainyard.cli.table import Listing
from trainyard.client.errors import UsageError
from trainyard.client.references import beginning_with, newest_checkpoint, resolve
from trainyard.client.sdk import Client
from trainyard.protocol.operations import SHARD_GIB, OperationKind
from trainyard.protocol.rest.checkpoints import OperationView
from trainyard.protocol.states import OperationState

DONE = {
    OperationKind.VERIFY: "Verified",
    OperationKind.SCRUB: "Scrubbed",
    OperationKind.DELETE: "Deleted",
    OperationKind.EXPORT: "Exported",
    OperationKind.SAMPLE: "Sampled",
    OperationKind.RECOVER: "Recovered",
    OperationKind.BUILD: "Built",
    OperationKind.AUTO_EXPORT: "Exported",
}


def operations(
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="JOB | CHECKPOINT | cancel OPERATION",
            help="List only those of a job or a checkpoint, or cancel one by its id.",
        ),
    ] = None,
    open_only: Annotated[bool, typer.Option("--open", help="Only open operations.")] = False,
    limit: Limit = 20,
    json: Json = False,
) -> None:
    """List operations on checkpoints: verifications, exports, deletions and so on.

    `cancel` ends a waiting operation immediately, and a running one within seconds. A deletion that
    has started cannot be cancelled.
    """
    words_given = given or []
    with Client() as yard:
        if len(words_given) == 2 and words_given[0] == "cancel":
            cancelled = yard.cancel_operation(_operation(yard, words_given[1]))
            emit(cancelled, operation_line, as_json=json)
            return
        if len(words_given) > 1:
            raise UsageError(
                f"{' '.join(words_given)!r} is neither a job nor an operation to cancel.",
                remedy="Write `trainyard operations [JOB]`, or `... operations cancel OPERATION`.",
            )
        target = resolve(yard, words_given[0]) if words_given else None
        found = yard.operations(
            job_id=target.job_id if target else None,
            checkpoint_id=target.checkpoint_id if target else None,
            open_only=open_only,
        )
        shown = at_most(limit, found)
    emit(shown, draw_operations, as_json=json)


def _operation(yard: Client, reference: str) -> str:
    """Return the id of the open operation with this prefix; return a whole id unchanged."""
    if is_id(reference):
        return reference
    return beginning_with(reference, yard.operations(open_only=True), "open operation").id


def export(
    reference: Newest,
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", help="float32, bfloat16 or float16. Default: as stored."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", help="Folder in `exports`. Default: the checkpoint's id and type."),
    ] = None,
    root: Annotated[
        str | None,
        typer.Option("--root", help="Storage root of the folder. Default: the checkpoint's."),
    ] = None,
    shard_gib: Annotated[
        float, typer.Option("--shard-gib", help="Largest size of a file's tensors, in GiB.")
    ] = SHARD_GIB,
    wait: Wait = False,
    json: Json = False,
) -> None:
    """Export weights, config and tokenizer of a checkpoint to a folder for `transformers`.

    The export runs on a node. With --wait, the command prints the folder after the export. An
    existing folder with the same content is left unchanged.
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
    prompt: Annotated[str, typer.Option("--prompt", "-p", help="Text to continue.")] = "",
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", help="Most tokens to generate. Default: 200.")
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option("--temperature", help="Sampling temperature; 0 is greedy. Default: 0.7."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Seed of the sampling. Default: 0.")
    ] = None,
    json: Json = False,
) -> None:
    """Generate text with a checkpoint: print the prompt and its continuation.

    The model runs on a node's CPU, in parallel with training.
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
    """Return a text with control characters replaced, except line breaks and tabs."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)


def finish(operation: OperationView, *, waited: bool, as_json: bool) -> None:
    """Print the result of an operation, or the command that shows its progress.

    Raises:
        typer.Exit: with 1 if the command waited and the operation did not succeed.
    """
    emit(operation, operation_line, as_json=as_json)
    if waited and not is_well(operation):
        raise typer.Exit(FAILED)


def draw_operations(shown: Sequence[OperationView]) -> RenderableType:
    """Return a table of operations, in the given order."""
    if not shown:
        return Text("No operations.")
    rows = Listing("ID", "WHAT", "CHECKPOINT", "STATE", "DONE", "NODE", "BY", "AGE", "RESULT",
                   right=("DONE", "AGE"), spare=("BY", "NODE", "AGE", "ID"),
                   elastic="RESULT")  # fmt: skip
    for operation in shown:
        rows.add(
            operation.id[:SHORT_ID],
            operation.kind,
            _what(operation),
            state_text(operation.state),
            _share(operation),
            operation.node or formats.DASH,
            operation.actor,
            formats.age(operation.created_at),
            Text(_result(operation), style="dim"),
        )
    return rows


def _what(operation: OperationView) -> str:
    if operation.checkpoint_id is None:
        return f"all of {operation.job_name}"
    return f"{operation.job_name}@{operation.checkpoint_id.split('.', 1)[1]}"


def _share(operation: OperationView) -> str:
    progress = operation.progress
    if operation.state != OperationState.RUNNING or progress is None or not progress.total:
        return formats.DASH
    return formats.share(progress.done / progress.total)


def _result(operation: OperationView) -> str:
    if operation.failing is not None:
        return formats.failed_tries(operation.failing)
    return operation.outcome.message if operation.outcome else operation.waiting or operation.reason


def is_well(operation: OperationView) -> bool:
    """Return whether the operation succeeded and, for a verification, found no damage."""
    found = operation.outcome.verification if operation.outcome else None
    return operation.state == OperationState.SUCCEEDED and (found is None or found.ok)


def operation_line(operation: OperationView) -> Text:
    """Return the state of an open operation or the outcome of an ended operation."""
    what = _what(operation)
    title = f"{operation.kind} of {what}"
    if operation.state in {OperationState.QUEUED, OperationState.RUNNING}:
        why = f": {operation.waiting}" if operation.waiting else ""
        if operation.failing is not None:
            why = f", after it {formats.failed_tries(operation.failing)}"
        return Text(f"{title} is {operation.state}{why}; `trainyard operations` shows it")
    if operation.state == OperationState.CANCELLED:
        return Text(f"⊘ {title} is cancelled")
    message = operation.outcome.message if operation.outcome else ""
    if is_well(operation):
        return Text.assemble(("✓ ", "green"), f"{DONE[operation.kind]} {what}: {message}")
    return Text.assemble(("✗ ", "red"), f"{title}: {message}")
