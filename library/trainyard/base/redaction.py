"""Masks for secrets: values of environment variables, and credentials in URLs."""

from __future__ import annotations

import re

MASK = "********"
"""Text that replaces a value that may be a secret."""
_CREDENTIALS = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]{0,30}://)[^/@\s\"'\\]{1,500}@")


def has_credentials(text: str) -> bool:
    """Return whether a text contains a URL with credentials."""
    return "://" in text and _CREDENTIALS.search(text) is not None


def hide_credentials(text: str) -> str:
    """Return a text with masked credentials in all URLs, such as `s3://********@bucket`."""
    return _CREDENTIALS.sub(rf"\g<scheme>{MASK}@", text) if "://" in text else text


def is_masked(text: str) -> bool:
    """Return whether a text is a mask, or a URL with masked credentials."""
    return text == MASK or f"://{MASK}@" in text
