"""Definitions for all tables: the metadata with its constraint names, and the types of keys."""

from __future__ import annotations

from enum import StrEnum

from sqlalchemy import BigInteger, CheckConstraint, Enum, Integer, MetaData, String

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

ID = String(26)
# SQLite autoincrements only columns of type INTEGER.
ROW_ID = BigInteger().with_variant(Integer, "sqlite")


def choice(values: type[StrEnum], *, length: int = 16) -> Enum:
    """Return a type for columns with one of these values, as text of at most `length` characters.

    The type has no constraint; `one_of` makes a constraint that a migration can name.
    """
    return Enum(
        values,
        native_enum=False,
        create_constraint=False,
        length=length,
        values_callable=lambda enum: [member.value for member in enum],
    )


def one_of(column: str, values: type[StrEnum]) -> CheckConstraint:
    """Return the constraint that a column contains one of these values."""
    listed = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IN ({listed})", name=column)
