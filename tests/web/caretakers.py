"""Plays nodes that run operations: good and bad verifications, exports, and deletions."""

from __future__ import annotations

from unittest.mock import patch

from server.core.subject import EXPORTING
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.checkpoints import deletion, service
from server.jobs.checkpoints.guards import locked_to_stay
from server.jobs.operations.service import claim_operation, report_operation
from tests.actors import ADA
from tests.server.harness import WORKER
from tests.server.yard import APPLY
from tests.web.actors import Stage
from trainyard.protocol.operations import (
    HUGGING_FACE,
    AutoExportTask,
    ExportResult,
    OperationKind,
    OperationOutcome,
    OperationProgress,
    Verification,
)
from trainyard.protocol.rest.checkpoints import ExportRequest
from trainyard.protocol.worker_messages import PROTOCOL, OperationReport
from trainyard.run.checkpoint_faults import CheckpointFault

SIZE = 1_900_592_112
FULL_DISK = OperationOutcome(
    outcome="failed", message="cannot write model.safetensors: No space left on device"
)


class Caretaker:
    """Runs operations on the checkpoints of one job."""

    def __init__(self, stage: Stage, job_id: str) -> None:
        self._stage = stage
        self._job_id = job_id

    def verify(self, name: str, *, fault: CheckpointFault | None = None) -> None:
        """Verify `a1.step-2` to the end."""
        operation_id, fence, node = self._begin(name)
        now = self._stage.context.now()
        found = Verification(
            ok=fault is None,
            at=now,
            loaded_at=None if fault else now,
            loaded_on=None if fault else 1,
            tensors=None if fault else 291,
            fault=fault,
            message="__0_0.distcp is damaged: its checksum is 41c0 instead of bbbb"
            if fault
            else None,
        )
        outcome = OperationOutcome(
            outcome="succeeded", message=str(fault or "all is well"), verification=found
        )
        report = OperationReport(protocol=PROTOCOL, node=node, fence=fence, outcome=outcome)
        report_operation(self._stage.context, operation_id, report, apply=APPLY)

    def begin(self, name: str, *, share: float) -> tuple[str, int, str]:
        """Start to verify, up to a share; return operation, fence and node."""
        begun = self._begin(name)
        self.advance(begun, share=share)
        return begun

    def advance(self, begun: tuple[str, int, str], *, share: float) -> None:
        """Advance a started verification."""
        operation_id, fence, node = begun
        total = 2 * SIZE
        progress = OperationProgress(
            doing="compares __0_0.distcp", done=int(share * total), total=total
        )
        report = OperationReport(protocol=PROTOCOL, node=node, fence=fence, progress=progress)
        report_operation(self._stage.context, operation_id, report, apply=APPLY)

    def export(self, name: str) -> None:
        """Export `a1.step-2` to the end, in half as many bytes."""
        context = self._stage.context
        request = ExportRequest(dtype="bfloat16", name="tale")
        operation_id = service.export(context, self._id(name), request, actor=ADA)
        fence, node = self._take(operation_id)
        written = ExportResult(
            place="checkpoints:exports/tale",
            path="/srv/checkpoints/exports/tale",
            dtype="bfloat16",
            files=5,
            size=SIZE // 6,
        )
        outcome = OperationOutcome(outcome="succeeded", message="5 files", export=written)
        report = OperationReport(protocol=PROTOCOL, node=node, fence=fence, outcome=outcome)
        report_operation(context, operation_id, report, apply=APPLY)

    def auto_export(self, name: str, *, fails: bool = False) -> None:
        """Export `a1.step-2` as after a commit, to the end."""
        context, outcome = self._stage.context, FULL_DISK
        with context.database.write() as connection:
            job, checkpoint = locked_to_stay(connection, self._id(name), scope=SYSTEM_SCOPE)
            operation_id = service.queue_on(
                context,
                connection,
                job=job,
                checkpoint=checkpoint,
                kind=OperationKind.AUTO_EXPORT,
                actor=EXPORTING,
                auto_export=AutoExportTask(format="safetensors"),
            )
        fence, node = self._take(operation_id)
        if not fails:
            place = f"{checkpoint.path}/{HUGGING_FACE}"
            written = ExportResult(
                place=f"checkpoints:{place}",
                path=f"/srv/checkpoints/{place}",
                dtype="float32",
                files=5,
                size=SIZE // 3,
            )
            outcome = OperationOutcome(outcome="succeeded", message="5 files", export=written)
        report = OperationReport(protocol=PROTOCOL, node=node, fence=fence, outcome=outcome)
        with patch("server.jobs.operations.service.MAX_TRIES", 1):  # a failure is not tried again
            report_operation(context, operation_id, report, apply=APPLY)

    def pin(self, name: str) -> None:
        """Pin."""
        service.set_pin(self._stage.context, self._id(name), pinned=True, actor=ADA)

    def delete(self, name: str) -> None:
        """Request a deletion that no node runs."""
        deletion.delete(self._stage.context, self._id(name), actor=ADA)

    def _begin(self, name: str) -> tuple[str, int, str]:
        operation_id = service.verify(self._stage.context, self._id(name), actor=ADA)
        return operation_id, *self._take(operation_id)

    def _take(self, operation_id: str) -> tuple[int, str]:
        """Claim the newest request; return fence and node."""
        context = self._stage.context
        before = len(self._stage.dispatcher.operations)
        self._stage.keeper.run()
        given = {m.operation_id: m.node for m in self._stage.dispatcher.operations[before:]}
        claim = claim_operation(context, operation_id, node=given[operation_id], worker=WORKER)
        return claim.fence, given[operation_id]

    def _id(self, name: str) -> str:
        return f"{self._job_id}.{name}"
