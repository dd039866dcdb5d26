"""Calls of the SDK for checkpoints and operations."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainyard.client.transport import Transport, given, read
from trainyard.protocol.rest.checkpoints import (
    CheckpointDetails,
    CheckpointView,
    ForkReply,
    OperationView,
)
from trainyard.protocol.rest.common import Page
from trainyard.protocol.states import OPEN_OPERATION_STATES, OperationState


class CatalogCalls:
    """Calls of `Client` for checkpoints; deletions and verifications are operations."""

    transport: Transport
    """Sends the requests."""

    def checkpoints(self, job_id: str) -> Iterator[CheckpointView]:
        """Iterate over the committed checkpoints of a job."""
        return self.transport.pages(Page[CheckpointView], f"/jobs/{job_id}/checkpoints")

    def checkpoint(self, checkpoint_id: str) -> CheckpointDetails:
        """Return one checkpoint with its manifest."""
        return self.transport.get(CheckpointDetails, f"/checkpoints/{checkpoint_id}")

    def verify(self, checkpoint_id: str) -> OperationView:
        """Compare a checkpoint with its checksums and, unless a program wrote it, load it.

        Wait with `wait_for_operation`.
        """
        return self.transport.post(OperationView, f"/checkpoints/{checkpoint_id}/verify")

    def export(
        self,
        checkpoint_id: str,
        *,
        dtype: str | None = None,
        name: str | None = None,
        root: str | None = None,
        shard_gib: float | None = None,
    ) -> OperationView:
        """Export the weights and the tokenizer in Hugging Face's format.

        Wait with `wait_for_operation`; `outcome.export` then gives the folder.

        Args:
            checkpoint_id: the checkpoint; its model must be of a known family.
            dtype: `float32`, `bfloat16` or `float16`; by default the stored dtype.
            name: name of the folder in `exports` below the storage root.
            root: storage root; by default the checkpoint's own root.
            shard_gib: maximum size of the tensors in one file, in GiB.

        Raises:
            ConflictError: the server rejects the export; the message gives the reason.
        """
        body = given(dtype=dtype, name=name, root=root, shard_gib=shard_gib)
        return self.transport.post(OperationView, f"/checkpoints/{checkpoint_id}/export", body)

    def sample(
        self,
        checkpoint_id: str,
        prompt: str = "",
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        seed: int | None = None,
    ) -> OperationView:
        """Generate text; wait with `wait_for_operation`, and read the text in `outcome.sample`.

        Args:
            checkpoint_id: the checkpoint; its model may be any model.
            prompt: text to continue.
            max_tokens: maximum number of tokens to generate; by default 200.
            temperature: divisor of the logits; 0 always selects the likeliest token.
            seed: seed of the sampling.

        Raises:
            ConflictError: the server rejects the request; the message gives the reason.
        """
        body = given(prompt=prompt, max_tokens=max_tokens, temperature=temperature, seed=seed)
        return self.transport.post(OperationView, f"/checkpoints/{checkpoint_id}/sample", body)

    def pin(self, checkpoint_id: str) -> CheckpointDetails:
        """Keep a checkpoint regardless of the retention settings."""
        return self.transport.post(CheckpointDetails, f"/checkpoints/{checkpoint_id}/pin")

    def unpin(self, checkpoint_id: str) -> CheckpointDetails:
        """Unpin a checkpoint, so that retention applies to the checkpoint again."""
        return self.transport.post(CheckpointDetails, f"/checkpoints/{checkpoint_id}/unpin")

    def delete_checkpoint(self, checkpoint_id: str) -> OperationView:
        """Delete a checkpoint from storage.

        Raises:
            ConflictError: the server rejects the deletion; the message gives the reason.
        """
        response = self.transport.send("DELETE", f"/checkpoints/{checkpoint_id}")
        return read(OperationView, response)

    def fork(
        self,
        checkpoint_id: str,
        *,
        name: str | None = None,
        changes: Mapping[str, Any] | None = None,
        parts: Sequence[str] | None = None,
        dry_run: bool = False,
        idempotency_key: str | None = None,
    ) -> ForkReply:
        """Start a new job from a checkpoint; the reply lists what continues exactly.

        Args:
            checkpoint_id: a checkpoint of any job.
            name: name of the new job.
            changes: changes to the spec of the checkpoint's job, by section; None removes a field.
            parts: `model`, and any of `optimizer`, `counters` and `data`; by default all parts that
                can continue.
            dry_run: return the preview without storing anything.
            idempotency_key: repeats with the same key start only one job; by default a new key.
        """
        changed = dict(changes or {})
        body = given(name=name, parts=parts and list(parts), changes=changed, dry_run=dry_run)
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        path = f"/checkpoints/{checkpoint_id}/fork"
        return self.transport.post(ForkReply, path, body, headers=headers)

    def operations(
        self,
        *,
        job_id: str | None = None,
        checkpoint_id: str | None = None,
        open_only: bool = False,
    ) -> Iterator[OperationView]:
        """Iterate over operations on checkpoints, the newest first.

        Args:
            job_id: only operations on checkpoints of this job, which may be deleted.
            checkpoint_id: only operations on this checkpoint.
            open_only: only open operations.
        """
        query = {"job": job_id, "checkpoint": checkpoint_id, "open": open_only or None}
        return self.transport.pages(Page[OperationView], "/operations", query)

    def operation(self, operation_id: str) -> OperationView:
        """Return one operation."""
        return self.transport.get(OperationView, f"/operations/{operation_id}")

    def cancel_operation(self, operation_id: str) -> OperationView:
        """Cancel an operation.

        Raises:
            ConflictError: the operation has ended, or is a deletion that has started.
        """
        return self.transport.post(OperationView, f"/operations/{operation_id}/cancel")

    def wait_for_operation(
        self, operation_id: str, *, timeout: float | None = None, poll_seconds: float = 0.5
    ) -> OperationView:
        """Return an operation once it has ended, or once it waits for a retry after a failure.

        Raises:
            TimeoutError: neither happened within `timeout` seconds.
        """
        return self.transport.poll(
            lambda: self.operation(operation_id),
            lambda one: one.state not in OPEN_OPERATION_STATES or _failed_once(one),
            waiting="{0.kind} is still {0.state}",
            timeout=timeout,
            poll_seconds=poll_seconds,
        )


def _failed_once(operation: OperationView) -> bool:
    return operation.state == OperationState.QUEUED and operation.failing is not None
