"""Git LFS pointers: small texts that a clone without `git lfs` has instead of files.

The format: https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md
"""

from __future__ import annotations

import re

LONGEST_POINTER = 1023
"""Most bytes of a pointer; a read of one more byte proves that a file is no pointer."""
SHORTEST_POINTER = 120
"""Fewest bytes of a pointer: a version, a digest and a size."""
_POINTER = re.compile(
    rb"\s*version https://(?:git-lfs\.github\.com|hawser\.github\.com)/spec/v\d+\r?\n"
    rb"(?:[a-z0-9.-]+ [^\r\n]*\r?\n)*?oid sha256:[0-9a-f]{64}\r?\n"
    rb"(?:[a-z0-9.-]+ [^\r\n]*\r?\n)*?size (\d+)\s*"
)


def pointer_problem(content: bytes) -> str | None:
    """Return the problem of a file that is a Git LFS pointer; None for any other file.

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
