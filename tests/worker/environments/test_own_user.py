"""A build as its own user: its files belong to the worker afterwards."""

from __future__ import annotations

import os
from pathlib import Path

from tests.other_users import needs_root
from worker.environments.environment_store import EnvironmentStore
from worker.node.users import RankUser

UID = 61_940


@needs_root
def test_what_another_user_has_built_belongs_to_the_worker(tmp_path: Path) -> None:
    store, digest = EnvironmentStore(tmp_path), "a" * 64
    store.folder.mkdir(mode=0o755)
    partial = store.begin(digest)
    assert partial.stat().st_mode & 0o7777 == 0o700
    RankUser(uid=UID, groups=()).give(partial, 0o1770)
    found = partial.stat()
    assert (found.st_gid, found.st_mode & 0o7777) == (UID, 0o1770)
    (partial / "bin").mkdir()
    (partial / "bin" / "tool").write_text("x")
    (partial / "bin" / "python").symlink_to("/usr/bin/python3")
    for path in (partial / "bin", partial / "bin" / "tool", partial / "bin" / "python"):
        os.chown(path, UID, UID, follow_symlinks=False)
    (partial / "bin").chmod(0o777)
    (partial / "bin" / "tool").chmod(0o6770)
    before = Path("/usr/bin/python3").stat()
    store.publish(partial, digest, most_bytes=2**20)
    built = store.find(digest)
    assert built is not None
    for each in (built, built / "bin", built / "bin" / "tool"):
        found = each.stat()
        assert (found.st_uid, oct(found.st_mode & 0o7777)) == (os.geteuid(), "0o755"), each
    assert Path("/usr/bin/python3").stat() == before
