"""Column types: UTC times, and records stored as JSON text."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Generic, Self, TypeVar

import orjson
from pydantic import ValidationError
from sqlalchemy import (
    JSON,
    ColumnElement,
    Connection,
    DateTime,
    Dialect,
    Float,
    Text,
    cast,
    extract,
    func,
)
from sqlalchemy.types import TypeDecorator

from server.core.errors import UnreadableError
from trainyard.base.problems import spec_error
from trainyard.protocol.record_parser import adapter, parse_record

Model = TypeVar("Model")


class UtcDateTime(TypeDecorator[datetime]):
    """A time in UTC with its zone; SQLite has no zones and stores the time alone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert a time to UTC; a time without a zone is an error."""
        if value is None:
            return None
        assert value.tzinfo is not None, "naive time"
        utc = value.astimezone(UTC)
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(self, value: datetime | None, _dialect: Dialect) -> datetime | None:
        """Return the stored time with the zone UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Json(TypeDecorator[Any]):
    """Plain JSON values, stored as text in the same form on both databases."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, _dialect: Dialect) -> str | None:
        """Serialize the value to JSON text."""
        return None if value is None else orjson.dumps(value).decode()

    def process_result_value(self, value: str | None, _dialect: Dialect) -> Any:
        """Parse the value from JSON text."""
        return None if value is None else orjson.loads(value)


@dataclass
class StoredRecord(Generic[Model]):
    """A stored record as JSON text. Its row is readable even if the text is not."""

    model: type[Model]
    text: str
    _record: Model | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, record: Model) -> Self:
        """Return a `StoredRecord` with the JSON text of a record."""
        model = type(record)
        return cls(model, adapter(model).dump_json(record).decode(), record)

    def read(self, of: str) -> Model:
        """Return the parsed record; `of` names it in the error, such as `spec of job 01...`.

        Raises:
            UnreadableError: another version wrote the record.
        """
        if self._record is None:
            try:
                self._record = parse_record(self.model, self.text)
            # The error's text contains values, such as credentials in URLs.
            except ValidationError as error:
                problem = spec_error(error, self.text)
                raise UnreadableError(f"the stored {of} cannot be read: {problem}") from None
        return self._record

    def read_or_none(self) -> Model | None:
        """Return the parsed record, or None if another version wrote it."""
        try:
            return self.read("record")
        except UnreadableError:
            return None


class Record(TypeDecorator[Model]):
    """A value that pydantic validates, stored as JSON text."""

    impl = Text
    cache_ok = True

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model: type[Model] = model
        """The pydantic model, or a union of models."""

    def process_bind_param(self, value: Model | None, _dialect: Dialect) -> str | None:
        """Serialize the model to JSON text."""
        return None if value is None else adapter(self.model).dump_json(value).decode()

    def process_result_value(self, value: str | None, _dialect: Dialect) -> Model | None:
        """Parse the model from JSON text.

        Raises:
            UnreadableError: another version wrote the record.
        """
        return None if value is None else StoredRecord(self.model, value).read(self.model.__name__)


class Lazy(Record[Model]):
    """A record that another version may have written; queries return it as `StoredRecord`."""

    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        """Serialize the model to JSON text; a `StoredRecord` keeps its text."""
        if isinstance(value, StoredRecord):
            return value.text
        return super().process_bind_param(value, dialect)

    def process_result_value(self, value: str | None, _dialect: Dialect) -> Any:
        """Return a `StoredRecord` with the unparsed text."""
        return None if value is None else StoredRecord(self.model, value)


def seconds_between(
    connection: Connection, start: ColumnElement[Any], end: ColumnElement[Any]
) -> ColumnElement[float]:
    """Return the seconds between two times as a column of a query; NULL if one time is NULL."""
    if connection.dialect.name == "sqlite":
        days = func.julianday(end, type_=Float) - func.julianday(start, type_=Float)
        return days * 86_400
    return cast(extract("epoch", end - start), Float)


def text_of(connection: Connection, record: ColumnElement[Any], *path: str) -> ColumnElement[Any]:
    """Return a query column with the text of a field in a stored record; NULL if it is absent.

    `path` has the names of the enclosing records, then the name of the field. Records of other
    versions are read, too.
    """
    if connection.dialect.name == "sqlite":
        return func.json_extract(record, f"$.{'.'.join(path)}", type_=Text)
    found: ColumnElement[Any] = cast(record, JSON)[path].as_string()
    return found
