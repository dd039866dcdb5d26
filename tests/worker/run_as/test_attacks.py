"""Attacks by a live process of an account on what root does with the account's files."""

from __future__ import annotations

import os
from collections.abc import Container
from pathlib import Path

import pytest

from tests.other_users import needs_root
from tests.worker.run_as.own_accounts import ADA, BOB, STAFF, VISION
from worker.environments.build_request import request_of
from worker.node.folder_usage import DEEPEST_RECORD, remove_all_but
from worker.node.users import FIRST_GROUP, NodeAccount, RankUser

USER = RankUser(
    uid=ADA,
    groups=(VISION,),
    own_group=FIRST_GROUP + 1,
    account=NodeAccount(name="ada", gid=STAFF, home="/nowhere/ada", umask=0o077),
)
SECRET = "password==1\n"


def owned(path: Path, uid: int, gid: int, mode: int) -> Path:
    path.write_text(SECRET)
    os.chown(path, uid, gid)
    path.chmod(mode)
    return path


@needs_root
def test_a_lock_is_read_with_the_rights_of_the_account(
    open_folder: Path, python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", python)  # the account may start it
    code = open_folder / "code"
    code.mkdir(mode=0o755)
    for name, uid, gid, mode in (
        ("own", ADA, STAFF, 0o600),
        ("of-the-group", BOB, VISION, 0o640),
        ("of-bob", BOB, STAFF, 0o600),
        ("of-root", 0, 0, 0o600),
    ):
        owned(code / name, uid, gid, mode)
    (code / "link").symlink_to(code / "own")
    os.mkfifo(code / "pipe", 0o666)
    (code / "pipe").chmod(0o666)
    for name in ("own", "of-the-group"):
        found = request_of(open_folder, ("code",), name, python=None, user=USER)
        assert found.lock == SECRET
    for name in ("of-bob", "of-root", "link", "pipe", "missing"):
        with pytest.raises(ValueError, match="cannot be read") as refused:
            request_of(open_folder, ("code",), name, python=None, user=USER)
        assert "password" not in str(refused.value)


class SwapDuringRemoval(Container[Path]):
    """Replaces a folder by a link while the removal lists the folders below."""

    def __init__(self, folder: Path, target: Path) -> None:
        self.folder, self.target = folder, target

    def __contains__(self, path: object) -> bool:
        if not self.folder.is_symlink():
            self.folder.rename(self.folder.with_name("moved"))
            self.folder.symlink_to(self.target)
        return False


@needs_root
def test_a_removal_by_root_follows_no_folder_that_became_a_link(open_folder: Path) -> None:
    run, victim = open_folder / "run", open_folder / "victim"
    inner = [f"d{depth}" for depth in range(1, DEEPEST_RECORD - 1)]
    for top in (run / "outer", victim):
        top.joinpath(*inner, "deep").mkdir(parents=True)
        top.joinpath(*inner, "deep", "file").write_text("precious")
    trigger = run.joinpath("outer", *inner, "trigger")
    trigger.touch()
    for path in (run, *run.rglob("*")):
        os.chown(path, ADA, FIRST_GROUP + 1)
    swap = SwapDuringRemoval(run / "outer", victim)
    remove_all_but(run, swap, frozenset(), user=USER)
    assert (run / "outer").is_symlink(), "the attack took place"
    assert victim.joinpath(*inner, "deep", "file").read_text() == "precious"
