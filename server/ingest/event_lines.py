"""Lines of `events.jsonl`, each read with the record that its data holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from server.checkpoints.catalog import check_manifest, check_moment
from trainyard.base.ids import is_id
from trainyard.protocol.manifest import Manifest, SaveFailed, SaveSettled
from trainyard.protocol.record_parser import check_record, parse_record
from trainyard.protocol.rest.event_data import PhaseEntered, Resumed, StopAgreed, WeightsLoaded
from trainyard.run.records import EventRecord, RequestAnswer, RunEventKind

TrainerEvent = PhaseEntered | WeightsLoaded | Resumed | StopAgreed
TRAINER_EVENTS: Mapping[RunEventKind, type[TrainerEvent]] = {
    "phase": PhaseEntered,
    "weights_loaded": WeightsLoaded,
    "resumed": Resumed,
    "stop_agreed": StopAgreed,
}


@dataclass(frozen=True)
class RunEvent:
    """A line of `events.jsonl`, with the record that its data holds."""

    line: EventRecord
    manifest: Manifest | None = None
    """Of a commit."""
    settled: SaveSettled | None = None
    save_failed: SaveFailed | None = None
    """Of a save whose end the training loop has recorded."""
    request_id: str | None = None
    answer: RequestAnswer | None = None
    """Of an answered request."""
    event: TrainerEvent | None = None
    """Of the other kinds, which have no effect but an event."""


def event_line(text: bytes, *, job_id: str, attempt: int) -> RunEvent:
    """Read a line of `events.jsonl` of this attempt.

    Raises:
        ValueError: it is none, or announces a commit of another attempt.
    """
    line = parse_record(EventRecord, text)
    check_moment(line.step, line.time)
    if line.kind == "checkpoint_committed":
        return RunEvent(line, manifest=_manifest(line, job_id=job_id, attempt=attempt))
    if line.kind == "checkpoint_settled":
        return RunEvent(line, settled=SaveSettled.model_validate(line.data))
    if line.kind == "save_failed":
        return RunEvent(line, save_failed=SaveFailed.model_validate(line.data))
    if line.kind == "request_answered":
        data = dict(line.data)
        request_id = str(data.pop("request_id", ""))
        if not is_id(request_id):
            raise ValueError(f"request_id {request_id[:40]!r} is no id")
        return RunEvent(line, request_id=request_id, answer=check_record(RequestAnswer, data))
    data = {**line.data, "step": line.step, "time": line.time}
    # A newer trainer may add fields.
    return RunEvent(line, event=TRAINER_EVENTS[line.kind].model_validate(data, extra="ignore"))


def _manifest(line: EventRecord, *, job_id: str, attempt: int) -> Manifest:
    manifest = Manifest.of_event(line.data)
    check_manifest(manifest, job_id=job_id, attempt=attempt)
    return manifest
