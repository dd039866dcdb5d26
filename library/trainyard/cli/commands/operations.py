"""`operations`, `export` and `sample`: operations on checkpoints, their progress and outcome."""

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
}


def operations(
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[JOB | CHECKPOINT] | cancel OPERATION",
            help="Only those of a job or a checkpoint, or an operation to cancel, by its id.",
        ),
    ] = None,
    open_only: Annotated[
        bool, typer.Option("--open", help="Only those that have not ended.")
    ] = False,
    limit: Limit = 20,
    json: Json = False,
) -> None:
    """Show operations on checkpoints: verifications, exports, deletions and so on.

    `cancel` ends a waiting operation at once and a running one within seconds, on its node. A
    deletion that has begun cannot be cancelled.
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
    """Return the id of the open operation whose id begins so; a whole id is returned as it is."""
    if is_id(reference):
        return reference
    return beginning_with(reference, yard.operations(open_only=True), "open operation").id


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


def finish(operation: OperationView, *, waited: bool, as_json: bool) -> None:
    """Print the result of an operation, or how to follow it.

    Raises:
        typer.Exit: with 1, if the command waited and the operation did not succeed.
    """
    emit(operation, operation_line, as_json=as_json)
    if waited and not is_well(operation):
        raise typer.Exit(FAILED)


def draw_operations(shown: Sequence[OperationView]) -> RenderableType:
    """Return operations, the newest first."""
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
    """Return whether it has succeeded, and a verification found no damage."""
    found = operation.outcome.verification if operation.outcome else None
    return operation.state == OperationState.SUCCEEDED and (found is None or found.ok)


def operation_line(operation: OperationView) -> Text:
    """Return the state of an operation that is open, or the outcome of one that has ended."""
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
