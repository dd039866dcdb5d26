"""Patterns of names, descriptions of their legal characters, and limits of tags."""

from __future__ import annotations

import re
from datetime import datetime

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
TAG = r"^[A-Za-z0-9][A-Za-z0-9._:/-]*$"
ARGUMENT = r"^[A-Za-z_][A-Za-z0-9_.-]*$"
LONGEST_TAG, MAX_TAGS = 64, 32
"""Maximum length of a tag in characters, and maximum number of tags of a job."""
ROOT = r"^[a-z][a-z0-9_-]{0,31}$"
USER_NAME = r"^[a-z0-9][a-z0-9._-]{0,63}$"
MEMBER_NAME = r"^[a-z0-9][a-z0-9._-]{0,63}(@[A-Za-z0-9][A-Za-z0-9._-]*)?$"
"""Name of a person, or of a service account with its project."""
EMAIL = r"^[!-?A-~]+@[!-?A-~]+$"
UNIX_ACCOUNT = r"^[A-Za-z_][A-Za-z0-9._-]{0,31}$"

LEGAL = {
    NAME: "letters, digits, '.', '_' and '-', beginning with a letter or a digit",
    TAG: "letters, digits, '.', '_', ':', '/' and '-', beginning with a letter or a digit",
    ARGUMENT: "letters, digits, '_', '.' and '-', beginning with a letter or '_'",
    ROOT: "lower-case letters, digits, '_' and '-', beginning with a letter, at most 32",
    USER_NAME: "lower-case letters, digits, '.', '_' and '-', beginning with a letter or a digit, "
    "at most 64",
    MEMBER_NAME: "the name of a user, such as 'ada', or of a service account, such as "
    "'nightly@vision'",
    UNIX_ACCOUNT: "letters, digits, '.', '_' and '-', beginning with a letter or '_', at most 32",
    EMAIL: "one '@' between printable ASCII characters, without spaces",
}
"""Description of the legal characters, by pattern."""


MAX_TOKEN_HOST = 40
"""Maximum length of the host's part in the name of a token of a login, in characters."""


def default_node_name(host: str) -> str:
    """Return the host name as the name of a node, with `-` for illegal characters."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", host).lstrip("._-") or "node"


def login_token_name(host: str, now: datetime) -> str:
    """Return the name of the token of a login on a machine; the time makes it unique."""
    return f"{default_node_name(host)[:MAX_TOKEN_HOST]}-{now:%Y%m%d-%H%M%S}"
