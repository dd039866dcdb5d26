"""Accounts for tests: files of accounts that only the processes of a mount namespace see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

ADA, BOB, STAFF, VISION = 61_801, 61_802, 61_810, 61_811
PASSWD = f"""\
root:x:0:0::/root:/bin/sh
toor:x:0:0::/root:/bin/sh
daemon:x:1:1::/:/usr/sbin/nologin
system:x:999:999::/:/bin/sh
ada:x:{ADA}:{STAFF}::/nowhere/ada:/usr/sbin/nologin
bob:x:{BOB}:{STAFF}::/nowhere/bob:/bin/sh
wheel:x:61803:0::/:/bin/sh
hidden:x:2147400005:{STAFF}::/:/bin/sh
nobody:x:65534:65534::/:/usr/sbin/nologin
squashed:x:65534:65534::/:/bin/sh
"""
GROUP = f"""\
root:x:0:ada
staff:x:{STAFF}:
vision:x:{VISION}:ada
"""
LOGIN_DEFS = "# UID_MIN 5\nUID_MIN\t\t 1000\nUMASK 027\n"


def write_accounts(folder: Path) -> Mapping[str, Path]:
    """Write the files, and return them by the path that they cover."""
    files = {"/etc/passwd": PASSWD, "/etc/group": GROUP, "/etc/login.defs": LOGIN_DEFS}
    covered = {}
    for path, text in files.items():
        covered[path] = folder / Path(path).name
        covered[path].write_text(text)
        covered[path].chmod(0o644)
    return covered


def with_accounts(covered: Mapping[str, Path], words: Sequence[str]) -> tuple[str, ...]:
    """Return the words that start a command to which the files of accounts are visible."""
    binds = " && ".join(f"mount --bind {source} {path}" for path, source in covered.items())
    script = f'{binds} && exec "$@"'
    return ("unshare", "--mount", "--propagation=private", "/bin/sh", "-c", script, "sh", *words)
