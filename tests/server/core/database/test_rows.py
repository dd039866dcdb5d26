"""Typed rows: each field is a column of a fitting type, and queries return these types."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, dataclass, fields
from datetime import datetime
from enum import StrEnum
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import pytest
from sqlalchemy import (
    Boolean,
    Column,
    ColumnElement,
    Enum,
    Float,
    Integer,
    LargeBinary,
    String,
    Table,
    create_engine,
)
from sqlalchemy.types import NullType

import server
from server.core.database import tables
from server.core.database.column_types import Json, Lazy, Record, StoredRecord, UtcDateTime
from server.core.database.rows import JobHead, TypedRow
from tests.test_house_rules import Finding, findings, nodes, python_files
from trainyard.protocol.states import JobState

PLAIN = {Boolean: bool, Integer: int, Float: float, LargeBinary: bytes}


def row_classes() -> list[type[TypedRow]]:
    for found in pkgutil.walk_packages(server.__path__, prefix="server."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
    return sorted(set(_subclasses(TypedRow)), key=lambda row: row.__qualname__)


def _subclasses(base: type[TypedRow]) -> Iterator[type[TypedRow]]:
    for row in base.__subclasses__():
        if row.__module__.startswith("server.") and "__dataclass_fields__" in vars(row):
            yield row
        yield from _subclasses(row)


def test_every_field_is_a_column_of_a_fitting_type() -> None:
    rows = row_classes()
    assert len(rows) > 20
    broken = [f"{row.__qualname__}.{fault}" for row in rows for fault in faults(row)]
    assert not broken, "\n".join(broken)


def faults(row: type[TypedRow]) -> Iterator[str]:
    """Return fields without a column, or with a type that does not fit the column."""
    hints = get_type_hints(row, include_extras=True)
    for field in fields(row):  # type: ignore[arg-type]
        hint, chosen = _split(hints[field.name])
        if chosen is None and field.name not in row.table.c:
            yield f"{field.name}: {row.table.name} has no such column"
            continue
        column = row.table.c[field.name] if chosen is None else chosen
        bare = _without_none(hint)
        if not _fits(bare, column.type):
            yield f"{field.name}: {hint} is not what {column.type!r} returns"
        # A query that names the column itself may exclude null by its conditions.
        if chosen is None and isinstance(column, Column) and column.nullable != (hint != bare):
            yield f"{field.name}: null is {'legal' if column.nullable else 'not legal'}"


def _split(hint: Any) -> tuple[Any, ColumnElement[Any] | None]:
    chosen = [m for m in getattr(hint, "__metadata__", ()) if isinstance(m, ColumnElement)]
    return (get_args(hint)[0], chosen[0]) if chosen else (hint, None)


def _without_none(hint: Any) -> Any:
    if get_origin(hint) not in {Union, UnionType}:
        return hint
    rest = [member for member in get_args(hint) if member is not NoneType]
    return rest[0] if len(rest) == 1 else hint


def _without_annotations(model: Any) -> Any:
    """Return the classes that validate a record, without the rule that chooses one."""
    if get_origin(model) is Annotated:
        return _without_annotations(get_args(model)[0])
    if get_origin(model) in {Union, UnionType}:
        return Union[tuple(_without_annotations(member) for member in get_args(model))]  # noqa: UP007
    return model


def _fits(hint: Any, kind: Any) -> bool:
    match kind:
        case Lazy():
            return get_origin(hint) is StoredRecord and get_args(hint) == (kind.model,)
        case Record():
            return bool(hint in (kind.model, _without_annotations(kind.model)))
        case Json() | NullType():  # a function with a result type that SQLAlchemy does not know
            return True
        case UtcDateTime():
            return hint is datetime
        case Enum():
            return hint is kind.enum_class
        case String():
            words = get_origin(hint) is Literal and all(isinstance(w, str) for w in get_args(hint))
            return hint is str or words
        case _:
            return any(isinstance(kind, each) and hint is plain for each, plain in PLAIN.items())


def test_faults_are_found() -> None:
    @dataclass(frozen=True, slots=True)
    class Planted(TypedRow):
        table: ClassVar[Table] = tables.jobs
        id: int
        reason: str
        state: str
        spec_digest: str | None
        nothing: str
        name: Annotated[int, tables.jobs.c.name]

    names = [fault.partition(":")[0] for fault in faults(Planted)]
    assert names == ["id", "reason", "state", "spec_digest", "nothing", "name"]


def test_rows_are_read_and_cannot_be_changed() -> None:
    engine = create_engine("sqlite://")
    query = JobHead.select().where(tables.jobs.c.id == "a")
    with engine.begin() as connection:
        tables.jobs.create(connection)
        assert JobHead.one_or_none(connection, query) is None
        assert JobHead.all(connection, query) == []
        connection.exec_driver_sql("PRAGMA ignore_check_constraints = on")
        known = {"id": "a", "name": "first", "state": "running"}
        other = {c.name: "{}" if not c.nullable and c.name not in known else None for c in _rest()}
        values = {name: text for name, text in other.items() if text is not None} | known
        marks = ", ".join(f":{name}" for name in values)
        statement = f"INSERT INTO jobs ({', '.join(values)}) VALUES ({marks})"  # noqa: S608
        connection.exec_driver_sql(statement, values)
        row = JobHead.one(connection, query)
    assert row == JobHead(id="a", name="first", project="{}", state=JobState.RUNNING, storage=None)
    assert isinstance(row.state, StrEnum)
    with pytest.raises(FrozenInstanceError):
        row.name = "second"  # type: ignore[misc]


def _rest() -> Iterator[Column[Any]]:
    return (column for column in tables.jobs.c if column.name not in {"id", "name", "state"})


def test_rows_of_the_database_leave_no_query() -> None:
    """Without SQLAlchemy's `Row`, no signature has a row that mypy cannot check."""
    files = [path for path in python_files("server") if path.name != "rows.py"]
    broken = findings(files, untyped_rows)
    assert not broken, "\n".join(["return a TypedRow (server/core/database/rows.py):", *broken])


def untyped_rows(module: ast.Module) -> Iterator[Finding]:
    for statement in nodes(module, ast.ImportFrom):
        from_sqlalchemy = (statement.module or "").partition(".")[0] == "sqlalchemy"
        if from_sqlalchemy and {"Row", "RowMapping"} & {a.name for a in statement.names}:
            yield statement.lineno, "imports Row"


def test_untyped_rows_are_found() -> None:
    planted = "from sqlalchemy import Row\nfrom rows import Row\nfrom sqlalchemy.engine import Row"
    assert [line for line, _ in untyped_rows(ast.parse(planted))] == [1, 3]
