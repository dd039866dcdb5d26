"""The Python SDK: one typed method per call of the REST API; lists and streams are iterators."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Self

import httpx

from trainyard.client.audit_calls import AuditCalls
from trainyard.client.calls.attempt_shells import ShellCalls
from trainyard.client.calls.checkpoints import CatalogCalls
from trainyard.client.calls.code_packs import PackCalls
from trainyard.client.calls.goodput import GoodputCalls
from trainyard.client.calls.job_artifacts import ArtifactCalls
from trainyard.client.calls.job_requests import RequestCalls
from trainyard.client.calls.member_calls import MemberCalls, SecretCalls
from trainyard.client.calls.node_sources import SourceCalls
from trainyard.client.calls.nodes import NodeCalls
from trainyard.client.calls.past_runs import ImportCalls
from trainyard.client.calls.projects import ProjectCalls
from trainyard.client.calls.user_calls import UserCalls
from trainyard.client.job_list import JobListCalls
from trainyard.client.settings import resolve
from trainyard.client.stream import EventStream, Resync
from trainyard.client.transport import QueryValue, Transport, given, read, unreachable
from trainyard.planner.results import Plan, ProgramPlan
from trainyard.protocol.attempt import Overrides
from trainyard.protocol.rest.access import Permission, SessionView, TokenView
from trainyard.protocol.rest.attempts import AttemptView
from trainyard.protocol.rest.checkpoints import JobDeletedView, OperationView
from trainyard.protocol.rest.common import Page
from trainyard.protocol.rest.events import AnyEvent, AnyStreamItem
from trainyard.protocol.rest.jobs import (
    CancelReply,
    JobView,
    StopRequest,
)
from trainyard.protocol.rest.metrics_and_logs import (
    ComparisonView,
    FactsComparison,
    LogLine,
    LogMatches,
    LogPage,
    MetricsView,
)
from trainyard.protocol.rest.resume import ResumeOptions, ResumeReply
from trainyard.protocol.states import TERMINAL_JOB_STATES
from trainyard.spec.job import JobSpec

Spec = JobSpec | Mapping[str, Any]
"""A job spec, or a document parsed from TOML, YAML or JSON."""


class Client(
    ArtifactCalls,
    AuditCalls,
    CatalogCalls,
    GoodputCalls,
    ImportCalls,
    JobListCalls,
    MemberCalls,
    SecretCalls,
    NodeCalls,
    PackCalls,
    ProjectCalls,
    RequestCalls,
    ShellCalls,
    SourceCalls,
    UserCalls,
):
    """A connection to one server.

    Every method raises a `trainyard.client.errors.TrainyardError`: an `ApiError` (with a subclass
    per status) for an error response, or `ConnectionFailedError` if the server cannot be reached.

        with Client() as client:
            job = client.submit({"name": "first", "resources": {"world_size": 2}})
            print(client.wait(job.id).state)
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Connect to `url`, else to TRAINYARD_URL, else to the server in the user's profile.

        Args:
            url: base URL, such as `http://127.0.0.1:8470`.
            token: `ty_api_...` or the admin token; by default the token in TRAINYARD_TOKEN or in
                the user's profile.
            transport: replaces the network in tests.
            sleep: replaces the clock in tests.

        Raises:
            NotConfiguredError: no URL is known.
            UsageError: a proxy variable in the environment is invalid.
        """
        self.transport = Transport(resolve(url, token), transport=transport, sleep=sleep)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """URL of the server."""
        return self.transport.connection.url

    def close(self) -> None:
        """Close the connections."""
        self.transport.close()

    # ---- jobs ----------------------------------------------------------------------------------

    def submit(self, spec: Spec, *, idempotency_key: str | None = None) -> JobView:
        """Submit a job; several calls with the same idempotency key submit one job."""
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        return self.transport.post(JobView, "/jobs", _document(spec), headers=headers)

    def plan(self, spec: Spec) -> Plan | ProgramPlan:
        """Validate a spec and return its plan; nothing is stored."""
        response = self.transport.send("POST", "/jobs/plan", body=_document(spec))
        if response.json().get("kind") == "program":
            return read(ProgramPlan, response)
        return read(Plan, response)

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the job spec."""
        schema: dict[str, Any] = self.transport.send("GET", "/schema/job").json()
        return schema

    def job(self, job_id: str) -> JobView:
        """Return one job."""
        return self.transport.get(JobView, f"/jobs/{job_id}")

    def stop(self, job_id: str, *, reason: str = "") -> JobView:
        """Stop a job after it has saved a checkpoint."""
        return self.transport.post(JobView, f"/jobs/{job_id}/stop", StopRequest(reason=reason))

    def cancel(self, job_id: str, *, reason: str = "") -> CancelReply:
        """End a job immediately without saving; the reply describes the lost work."""
        body = StopRequest(reason=reason)
        return self.transport.post(CancelReply, f"/jobs/{job_id}/cancel", body)

    def set_priority(self, job_id: str, priority: int | str) -> JobView:
        """Set the priority of a waiting or running job: a number, or `low`, `normal` or `high`."""
        return self.transport.post(JobView, f"/jobs/{job_id}/priority", {"priority": priority})

    def resume(
        self,
        job_id: str,
        *,
        world_size: int | None = None,
        checkpoint_id: str | None = None,
        overrides: Overrides | Mapping[str, Any] | None = None,
        steps: int | None = None,
        allow_code_change: bool = False,
        dry_run: bool = False,
    ) -> ResumeReply:
        """Resume a job from a checkpoint, by default the lineage's newest, on any legal layout.

        `overrides` may also be a plain mapping. With `allow_code_change`, the files of `model.code`
        may differ from the files that the checkpoint was trained with. With `dry_run`, nothing is
        stored, and the reply shows the changes.
        """
        if isinstance(overrides, Overrides):
            overrides = _document(overrides)
        body = given(
            world_size=world_size,
            checkpoint_id=checkpoint_id,
            overrides=overrides,
            steps=steps,
            allow_code_change=allow_code_change or None,
            dry_run=dry_run or None,
        )
        return self.transport.post(ResumeReply, f"/jobs/{job_id}/resume", body)

    def resume_options(self, job_id: str) -> ResumeOptions:
        """Return the legal layouts for each available world size, or why no layout is legal."""
        return self.transport.get(ResumeOptions, f"/jobs/{job_id}/resume-options")

    def delete(
        self, job_id: str, *, checkpoints: Literal["keep", "delete"] = "keep"
    ) -> list[OperationView]:
        """Delete a finished job; return the operations that delete its checkpoints, if any."""
        query = {"checkpoints": checkpoints}
        response = self.transport.send("DELETE", f"/jobs/{job_id}", query=query)
        return read(JobDeletedView, response).operations if response.status_code == 202 else []

    def wait(
        self, job_id: str, *, timeout: float | None = None, poll_seconds: float = 1.0
    ) -> JobView:
        """Return the job once it has reached a final state.

        Raises:
            TimeoutError: the job reached no final state within `timeout` seconds.
        """
        return self.transport.poll(
            lambda: self.job(job_id),
            lambda job: job.state in TERMINAL_JOB_STATES,
            waiting="{0.name} is still {0.state}",
            timeout=timeout,
            poll_seconds=poll_seconds,
        )

    # ---- output of jobs ------------------------------------------------------------------------

    def attempts(self, job_id: str) -> Iterator[AttemptView]:
        """Iterate over the attempts of a job, the newest first."""
        return self.transport.pages(Page[AttemptView], f"/jobs/{job_id}/attempts")

    def events(self, job_id: str) -> Iterator[AnyEvent]:
        """Iterate over the events of a job, the newest first."""
        return self.transport.pages(Page[AnyEvent], f"/jobs/{job_id}/events")

    def logs(
        self,
        job_id: str,
        *,
        attempt: int | None = None,
        rank: int | None = None,
        first_line: int | None = None,
        limit: int | None = None,
    ) -> LogPage:
        """Return lines of one rank's log: the last lines, or the lines from `first_line` on.

        Args:
            job_id: id of the job.
            attempt: number of the attempt; by default the newest attempt.
            rank: global rank; by default 0.
            first_line: number of the first line; a negative number counts from the end.
            limit: maximum number of lines.
        """
        query = {"attempt": attempt, "rank": rank, "first_line": first_line, "limit": limit}
        return self.transport.get(LogPage, f"/jobs/{job_id}/logs", query)

    def search_logs(
        self,
        job_id: str,
        text: str,
        *,
        attempt: int | None = None,
        rank: int | None = None,
    ) -> Iterator[LogLine]:
        """Iterate over the lines of one rank's log that contain `text`, ignoring case."""
        query: dict[str, QueryValue | None] = {"text": text, "attempt": attempt, "rank": rank}
        while True:
            found = self.transport.get(LogMatches, f"/jobs/{job_id}/logs/search", query)
            yield from found.lines
            if found.next_line is None:
                return
            query["first_line"] = found.next_line

    def metrics(
        self,
        job_id: str,
        *,
        names: tuple[str, ...] = (),
        max_points: int | None = None,
        from_step: int | None = None,
        to_step: int | None = None,
        attempt: int | None = None,
    ) -> MetricsView:
        """Return series along the lineage, grouped into buckets; by default the first 50 names."""
        query = {
            "names": ",".join(names) or None,
            "max_points": max_points,
            "from_step": from_step,
            "to_step": to_step,
            "attempt": attempt,
        }
        return self.transport.get(MetricsView, f"/jobs/{job_id}/metrics", query)

    def metrics_csv(
        self, job_id: str, *, names: tuple[str, ...] = (), attempt: int | None = None
    ) -> Iterator[str]:
        """Iterate over lines `attempt,step,time,name,value` along the lineage, the header first."""
        path, headers = f"/jobs/{job_id}/metrics", {"Accept": "text/csv"}
        query = {"names": ",".join(names) or None, "attempt": attempt}
        try:
            with self.transport.stream(path, query=query, headers=headers) as response:
                yield from response.iter_lines()
        except httpx.TransportError as error:
            raise unreachable(self.url, error) from error

    def compare(
        self,
        job_ids: Sequence[str],
        *,
        names: Sequence[str] = (),
        max_points: int | None = None,
        x: Literal["step", "tokens", "seconds"] | None = None,
        from_x: float | None = None,
        to_x: float | None = None,
    ) -> ComparisonView:
        """Return buckets of the same series for up to eight jobs; each bucket has time and tokens.

        Without `names`, the reply only lists the series of each job. `x` is the axis, by default
        steps; `from_x` and `to_x` bound the range on this axis.
        """
        query = {
            "jobs": ",".join(job_ids),
            "names": ",".join(names) or None,
            "max_points": max_points,
            "x": x,
            "from_x": from_x,
            "to_x": to_x,
        }
        return self.transport.get(ComparisonView, "/metrics/compare", query)

    def compare_facts(self, job_ids: Sequence[str]) -> FactsComparison:
        """Return the values of configuration and summary that differ between up to eight jobs."""
        query = {"jobs": ",".join(job_ids)}
        return self.transport.get(FactsComparison, "/facts/compare", query)

    def stream(
        self, *, job_id: str | None = None, give_up_seconds: float = 60.0
    ) -> Iterator[AnyStreamItem | Resync]:
        """Yield events as they happen, in order and each once, despite interruptions.

        Notices (`metrics`, `log`, `phase`, ...) come between the events and have no `id`. A newer
        notice replaces older notices of its kind.

        The first item is a `Resync`: read the current state at this item, then apply the events
        that follow. Another `Resync` follows each gap that the server could not replay.
        """
        stream = EventStream(self.transport, job_id=job_id, give_up_seconds=give_up_seconds)
        return iter(stream)

    # ---- access --------------------------------------------------------------------------------

    def session(self) -> SessionView:
        """Return the session view, which names the owner of the token."""
        return self.transport.get(SessionView, "/auth/session")

    def tokens(self, *, every: bool = False) -> Iterator[TokenView]:
        """Iterate over the own tokens, or over those of all users, which needs `tokens:admin`."""
        query = {"all": "true"} if every else None
        return self.transport.pages(Page[TokenView], "/tokens", query)

    def create_token(
        self,
        name: str,
        *,
        kind: Literal["api", "join", "login"] = "api",
        expires_in_seconds: int | None = None,
        scopes: Sequence[Permission] | None = None,
    ) -> TokenView:
        """Create an own token. Only this reply contains the token's `secret`.

        A join token needs `tokens:admin`; only the admin token creates login codes. `scopes` are
        the permissions of a token of kind `api`; None gives all that an API token has by default.
        """
        body = given(name=name, kind=kind, expires_in_seconds=expires_in_seconds, scopes=scopes)
        return self.transport.post(TokenView, "/tokens", body)

    def revoke_token(self, token_id: str) -> None:
        """Revoke an own token; with `tokens:admin`, any token."""
        self.transport.send("DELETE", f"/tokens/{token_id}")


def _document(given: Spec | Overrides) -> Mapping[str, Any]:
    """Return a spec or overrides as a document; of a model, only the fields that were set."""
    if isinstance(given, JobSpec | Overrides):
        return given.model_dump(mode="json", exclude_unset=True)
    return given
