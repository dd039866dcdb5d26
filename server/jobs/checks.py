"""What a spec must be beside well formed: it can run, here."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Connection, func, select

from server.context import Context
from server.errors import InvalidRequestError
from server.tables import nodes
from specs.job import JobSpec
from specs.places import split_place
from specs.problems import Problem, SpecError
from specs.rules import check_job_spec


def check_spec(context: Context, spec: JobSpec) -> None:
    """Refuse a spec that cannot run, or that names a root that the settings do not.

    Raises:
        InvalidRequestError: naming every problem found.
    """
    problems = list(_unknown_roots(context, spec))
    try:
        check_job_spec(spec)
    except SpecError as error:
        problems += error.problems
    if problems:
        raise InvalidRequestError.of(problems)


def check_world_size(connection: Connection, world_size: int, *, pointer: str) -> None:
    """Refuse more slots than all nodes have that ever registered; before the first, none is.

    Raises:
        InvalidRequestError: at `pointer`.
    """
    known = connection.scalar(select(func.sum(nodes.c.slots)))
    if known is not None and world_size > known:
        detail = f"world_size={world_size} is more than the {known} slots of all nodes"
        raise InvalidRequestError.at(pointer, detail)


def roots_of(spec: JobSpec) -> tuple[str, ...]:
    """Return the names of the roots that a node must see to run the job."""
    data = () if spec.data.path is None else (split_place(spec.data.path)[0],)
    return tuple(dict.fromkeys((spec.checkpoint.root, *data)))


def _unknown_roots(context: Context, spec: JobSpec) -> Iterator[Problem]:
    legal = context.settings.roots
    named = {"/checkpoint/root": spec.checkpoint.root}
    if spec.data.path is not None:
        named["/data/path"] = split_place(spec.data.path)[0]
    for pointer, root in named.items():
        if root not in legal:
            detail = f"{root!r} is no root of this server; legal: {', '.join(legal)}"
            yield Problem(pointer=pointer, detail=detail)
