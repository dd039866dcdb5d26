"""Pointers of Git LFS: the small text that a clone without `git lfs` holds in place of a file.

The format: https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md
"""

from __future__ import annotations

import re

LONGEST_POINTER = 1023
"""Bytes of a pointer at most; its content is that of one when it is read whole."""
SHORTEST_POINTER = 120
"""Bytes of a pointer at least: a version, a digest and a size."""
_POINTER = re.compile(
    rb"\s*version https://(?:git-lfs\.github\.com|hawser\.github\.com)/spec/v\d+\r?\n"
    rb"(?:[a-z0-9.-]+ [^\r\n]*\r?\n)*?oid sha256:[0-9a-f]{64}\r?\n"
    rb"(?:[a-z0-9.-]+ [^\r\n]*\r?\n)*?size (\d+)\s*"
)


def pointer_problem(content: bytes) -> str | None:
    """Return what is wrong with a file that is a pointer of Git LFS; None for any other.

    Args:
        content: the whole content of a file, or more than `LONGEST_POINTER` bytes of it.
    """
    if not SHORTEST_POINTER <= len(content) <= LONGEST_POINTER:
        return None
    found = _POINTER.fullmatch(content.removeprefix(b"\xef\xbb\xbf"))
    if found is None:
        return None
    return (
        f"is a pointer of Git LFS to a file of {int(found[1]):,} bytes, not the file; fetch it "
        "with `git lfs pull`, or download it again"
    )
