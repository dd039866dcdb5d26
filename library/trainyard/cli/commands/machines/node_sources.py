"""`sources`: node sources, requests for nodes, and the reasons why requests wait."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from trainyard.base.labels import in_words
from trainyard.cli import formats
from trainyard.cli.errors import FAILED
from trainyard.cli.listings import SHORT_ID
from trainyard.cli.options import Json, Limit
from trainyard.cli.output import at_most, emit, facts, heading, note
from trainyard.cli.table import Listing
from trainyard.client.errors import UsageError
from trainyard.client.references import beginning_with
from trainyard.client.sdk import Client
from trainyard.protocol.node_sources.messages import CheckResult
from trainyard.protocol.node_sources.views import NodeRequestView, SourceView

EXPLANATION_SECONDS = 15.0
"""Maximum wait for the answer to `explain`, in seconds; an idle provisioner answers within 1 s."""
LEAST_REASON = 32
"""Minimum width of the column WHY; other columns are dropped to keep this width."""
COMMANDS = (
    "Write `trainyard sources [ls]`, `trainyard sources show|check|pause|unpause|delete|requests "
    "NAME`, `trainyard sources request NAME --nodes N` or "
    "`trainyard sources cancel|end|explain REQUEST`."
)
SIGNS = {
    "wanted": ("○", "blue"),
    "pending": ("◔", "cyan"),
    "running": ("●", "green"),
    "leaving": ("◑", "yellow"),
    "ended": ("■", "dim"),
}
"""Sign and colour of each state of a request."""
STANDINGS = {"online": "green", "paused": "yellow", "offline": "dim"}
"""Colour of each state of a source. States that are not listed need a person, and are red."""


def sources(
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ls | show|check|pause|unpause|requests|request|delete NAME"
            " | cancel|end|explain REQUEST",
            help="Action on one source or on one request for nodes. Default: list all sources.",
        ),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option("--nodes", min=1, help="With `request`: number of nodes. Default: 1."),
    ] = None,
    reason: Annotated[
        str | None,
        typer.Option("--reason", help="With `pause`: the reason, shown with the source."),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", "-w", help="With `check`: wait for the findings.")
    ] = False,
    open_only: Annotated[
        bool, typer.Option("--open", help="With `requests`: only open ones.")
    ] = False,
    limit: Limit = 20,
    json: Json = False,
) -> None:
    """List node sources; check or pause a source, request nodes, cancel a request.

    A source is a Slurm partition, a Kubernetes namespace, or machines reached by ssh. `check`
    requests one node, which examines its environment and ends. With --wait, the command prints the
    findings, and exits with 1 if a check failed. REQUEST is the id of an open request, or a prefix
    of the id.
    """
    verb, name = _parsed(given or [])
    _refuse_foreign(verb, nodes=nodes, reason=reason, wait=wait, open_only=open_only)
    with Client() as yard:
        match verb:
            case "ls":
                emit(list(yard.sources()), draw_sources, as_json=json)
            case "show":
                _show(yard, name, as_json=json)
            case "pause":
                emit([yard.pause_source(name, reason=reason)], draw_sources, as_json=json)
            case "unpause":
                emit([yard.unpause_source(name)], draw_sources, as_json=json)
            case "delete":
                yard.delete_source(name)
                emit(list(yard.sources()), draw_sources, as_json=json)
            case "requests":
                found = at_most(limit, yard.node_requests(name, open_only=open_only))
                emit(found, draw_requests, as_json=json)
            case "request":
                emit(yard.request_nodes(name, nodes=nodes or 1), draw_request, as_json=json)
            case "check":
                _check(yard, name, wait=wait, as_json=json)
            case _:
                _act(yard, verb, name, as_json=json)


def _parsed(given: list[str]) -> tuple[str, str]:
    match given:
        case [] | ["ls"]:
            return "ls", ""
        case [("show" | "check" | "pause" | "unpause" | "delete" | "requests" | "request") as verb,
              name]:  # fmt: skip
            return verb, name
        case [("cancel" | "end" | "explain") as verb, name]:
            return verb, name
        case _:
            raise UsageError(f"`sources {' '.join(given)}` is not a command.", remedy=COMMANDS)


def _refuse_foreign(
    verb: str, *, nodes: int | None, reason: str | None, wait: bool, open_only: bool
) -> None:
    for option, is_given, command in (
        ("--nodes", nodes is not None, "request"),
        ("--reason", reason is not None, "pause"),
        ("--wait", wait, "check"),
        ("--open", open_only, "requests"),
    ):
        if is_given and verb != command:
            raise UsageError(f"{option} belongs to `sources {command}`.", remedy=COMMANDS)


def _show(yard: Client, name: str, *, as_json: bool) -> None:
    source = yard.source(name)
    if as_json:
        emit(source, lambda _: "", as_json=True)
        return
    requests = list(yard.node_requests(name, open_only=True))
    emit(source, lambda seen: draw_source(seen, requests), as_json=False)


def _check(yard: Client, name: str, *, wait: bool, as_json: bool) -> None:
    check = yard.check_source(name)
    if not wait:
        emit(check, draw_request, as_json=as_json)
        return
    note(f"Requested a node of {name} for the check: {check.id[:SHORT_ID]}.")
    source = yard.source(name)
    if (state := standing(source)) not in ("online", "paused"):  # a check ignores the pause
        why = f": {_why(source)}" if _why(source) else ""
        note(f"The source is {state}{why}. `trainyard sources show {name}` shows its state.")
    check = yard.wait_for_findings(check)
    emit(check, draw_findings, as_json=as_json)
    if not check.results or not all(result.passed for result in check.results):
        raise typer.Exit(FAILED)


def _act(yard: Client, verb: str, reference: str, *, as_json: bool) -> None:
    request = _request(yard, reference)
    if verb == "cancel":
        request = yard.cancel_node_request(request.source, request.id)
    elif verb == "end":
        request = yard.end_node_request(request.source, request.id)
    else:
        yard.explain_node_request(request.source, request.id)
        try:
            request = yard.wait_for_explanation(request, timeout=EXPLANATION_SECONDS)
        except TimeoutError:
            note(f"No new reason arrived within {EXPLANATION_SECONDS:g} s; this is the last one.")
    emit(request, draw_request, as_json=as_json)


def _request(yard: Client, reference: str) -> NodeRequestView:
    """Return the open request with an id that starts with `reference`.

    Raises:
        UnknownReferenceError: no open request, or more than one, has such an id.
    """
    found = (
        request
        for source in yard.sources()
        for request in yard.node_requests(source.name, open_only=True)
    )
    return beginning_with(reference, found, "open request")


def standing(source: SourceView) -> str:
    """Return the state of a source: `online`, or the most urgent reason why it supplies no node."""
    if source.needs_login is not None:
        return "needs login"
    if not source.online:
        return "offline"
    if source.paused:
        return "paused"
    return "online" if source.error is None else "error"


def draw_sources(shown: Sequence[SourceView]) -> RenderableType:
    """Return a table of node sources."""
    if not shown:
        return Text("No sources. `python -m provisioner` registers those in its sources.toml.")
    rows = Listing("NAME", "KIND", "STATE", "NODE", "WAITING", "RUNNING", "MOST", "HOURS", "QUOTA",
                   "LISTED", "WHY",
                   right=("WAITING", "RUNNING", "MOST", "HOURS", "QUOTA", "LISTED"),
                   spare=("LISTED", "QUOTA", "HOURS", "NODE", "MOST", "KIND"),
                   elastic="WHY", least=LEAST_REASON)  # fmt: skip
    for source in shown:
        quota = source.limits.node_hours_per_month
        rows.add(
            source.name,
            source.kind,
            _standing(source),
            f"{source.shape.slots} {source.shape.device}",
            f"{source.nodes_asked:,}",
            f"{source.nodes_running:,}",
            f"{source.limits.nodes:,}",
            f"{source.node_hours_this_month:,.1f}",
            formats.DASH if quota is None else f"{quota:,g}",
            formats.age(source.listed_at),
            Text(_why(source), style="dim"),
        )
    logins = [(one.name, one.needs_login.command) for one in shown if one.needs_login is not None]
    return Group(rows, *(Text(f"Log in to {name}: {command}") for name, command in logins))


def _standing(source: SourceView) -> Text:
    state = standing(source)
    return Text(state, style=STANDINGS.get(state, "red"))


def _why(source: SourceView) -> str:
    if source.needs_login is not None:
        return source.needs_login.reason
    if source.paused:
        by = f"by {source.paused_by}" if source.paused_by else ""
        return ": ".join(filter(None, (by, source.pause_reason or "")))
    return source.error or ""


def draw_source(source: SourceView, requests: Sequence[NodeRequestView]) -> RenderableType:
    """Return all details of a source, with its open requests."""
    limits, quota = source.limits, source.limits.node_hours_per_month
    of_quota = "" if quota is None else f" of {quota:,g}"
    slots = formats.counted(source.shape.slots, f"{source.shape.device} slot")
    known: list[tuple[str, RenderableType | None]] = [
        ("state", _standing(source)),
        ("why", _why(source)),
        ("log in with", source.needs_login.command if source.needs_login else None),
        ("kind", source.kind),
        ("a node", f"{slots}; roots {', '.join(source.shape.roots)}"),
        ("labels", in_words(source.shape.labels)),
        ("nodes", f"{source.nodes_running:,} running and {source.nodes_asked:,} waiting of at most "
                  f"{limits.nodes:,}; a request has at most {limits.nodes_per_request:,}"),
        ("requests", f"{source.pending_requests:,} waiting of at most {limits.pending:,}"),
        ("node-hours", f"{source.node_hours_this_month:,.1f}{of_quota} this month"),
        ("allocation", formats.duration(source.request_seconds)
            if source.request_seconds is not None else "no limit"),
        ("released after", f"{formats.duration(source.idle_seconds)} without an attempt"),
        ("listed", formats.date(source.listed_at)),
        ("provisioner", f"version {source.version}, since {formats.date(source.registered_at)}"),
    ]  # fmt: skip
    return Group(
        Text(source.name, style="bold"),
        facts(known),
        heading("Open requests"),
        draw_requests(requests),
    )


def draw_requests(shown: Sequence[NodeRequestView]) -> RenderableType:
    """Return a table of requests for nodes, in the given order."""
    if not shown:
        return Text("No requests.")
    rows = Listing("ID", "STATE", "NODES", "JOINED", "ENGINE", "START", "END", "FOR", "AGE", "WHY",
                   right=("NODES", "JOINED", "AGE"),
                   spare=("AGE", "ENGINE", "END", "JOINED", "START", "FOR"),
                   elastic="WHY", least=LEAST_REASON)  # fmt: skip
    for request in shown:
        rows.add(
            request.id[:SHORT_ID],
            _state(request),
            f"{request.nodes:,}",
            f"{len(request.joined):,}",
            request.ref or formats.DASH,
            formats.date(request.starts_at),
            formats.date(request.ended_at or request.ends_at),
            "check" if request.purpose == "check" else request.caused_by,
            formats.age(request.created_at),
            Text(request.reason, style="dim"),
        )
    return rows


def _state(request: NodeRequestView) -> Text:
    sign, style = SIGNS[request.state]
    unknown = request.engine_state == "unknown" and request.ref is not None
    return Text(
        f"{sign} {request.state}{'?' if unknown and request.state != 'ended' else ''}", style=style
    )


def draw_request(request: NodeRequestView) -> RenderableType:
    """Return all details of one request for nodes."""
    engine = f"{request.ref or 'no job yet'}, {request.engine_state}"
    length = "no limit" if request.seconds is None else formats.duration(request.seconds)
    for_whom = "its check" if request.purpose == "check" else request.caused_by
    return Group(
        Text(f"{formats.counted(request.nodes, 'node')} of {request.source}", style="bold"),
        facts([
            ("id", request.id),
            ("state", _state(request)),
            ("reason", request.reason),
            ("for", for_whom),
            ("length", length),
            ("engine", engine),
            ("start", formats.date(request.starts_at) if request.starts_at else None),
            ("end", formats.date(request.ends_at) if request.ends_at else None),
            ("joined", ", ".join(request.joined)),
            ("ended", formats.date(request.ended_at) if request.ended_at else None),
        ]),
    )  # fmt: skip


def draw_findings(check: NodeRequestView) -> RenderableType:
    """Return the findings of a check, or the reason why it has none."""
    if not check.results:
        why = f": {check.reason}" if check.reason else ""
        return Text.assemble(("✗ ", "red"), f"The check of {check.source} ended unfinished{why}")
    return facts([(result.name, _finding(result)) for result in check.results], indent=0)


def _finding(result: CheckResult) -> Text:
    sign = ("✓ ", "green") if result.passed else ("✗ ", "red")
    return Text.assemble(sign, result.detail)
