"""Secrets of projects and users: views, request bodies and the event of a delivery."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr

from trainyard.base.model_base import RecordModel, SpecModel
from trainyard.base.redaction import MIN_MASKED
from trainyard.protocol.event_kinds import EventData
from trainyard.spec.environment import SecretOwner

MAX_SECRET_BYTES = 64 * 1024
"""Maximum size of a value in UTF-8; Linux accepts no larger variable than 128 KiB."""


def _checked(value: SecretStr) -> SecretStr:
    """Return a value that an environment variable can hold; no error contains the value."""
    text = value.get_secret_value()
    if "\0" in text:
        raise ValueError("the value has a NUL character, which no environment variable can hold")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise ValueError("the value is no text: it has half of a surrogate pair") from None
    if size > MAX_SECRET_BYTES:
        raise ValueError(f"the value has {size:,} bytes; legal: 1 to {MAX_SECRET_BYTES:,}")
    return value


class SecretRequest(SpecModel):
    """Body of a request that stores a new version of a secret."""

    value: Annotated[SecretStr, Field(min_length=1), AfterValidator(_checked)]
    """Value of the secret, 1 byte to 64 KiB in UTF-8, without NUL. No response contains it."""


class SecretView(RecordModel):
    """A secret, without its value."""

    name: str
    """Name of the secret."""
    version: int
    """Newest version; the first is 1, and no number is used twice."""
    versions: tuple[int, ...]
    """Stored versions, oldest first."""
    created_at: datetime
    """Time at which the secret was created."""
    changed_at: datetime
    """Time at which the newest version was stored."""
    changed_by: str
    """Who stored the newest version."""
    warning: str | None = None
    """Why outputs show the newest value unmasked; only in the response to a change."""


class SecretChanged(EventData):
    """A secret of a project got a version, or was deleted."""

    project: str
    """Name of the project."""
    name: str
    """Name of the secret."""
    version: int | None
    """New version; null for a deletion."""


class DeliveredSecret(RecordModel):
    """A secret that an attempt gets."""

    variable: str
    """Environment variable that has the value."""
    name: str
    """Name of the secret."""
    of: SecretOwner
    """Whether the secret belongs to the project or to the owner of the job."""
    version: int
    """Version of the value."""


class SecretsDelivered(EventData):
    """A node got values of secrets for its share of an attempt."""

    secrets: tuple[DeliveredSecret, ...]
    """The secrets, by variable."""


def short_value_warning(value: str) -> str | None:
    """Return the warning for a value that outputs show unmasked; None for a maskable value."""
    if len(value.encode()) >= MIN_MASKED:
        return None
    return f"outputs show this value unmasked, because it has fewer than {MIN_MASKED} bytes"
