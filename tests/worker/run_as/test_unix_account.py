"""Lookups of Unix accounts: ids and groups as the node knows them, and refused accounts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from tests.other_users import needs_root, packages
from tests.worker.run_as.own_accounts import (
    ADA,
    STAFF,
    VISION,
    with_accounts,
    write_accounts,
)
from worker.node.users import NodeAccount, RankUser
from worker.run_as.unix_account import AccountRefusedError, answer_of, look_up

NAMES = (
    *("ada", "nemo", "root", "toor", "daemon", "system"),
    *("wheel", "hidden", "nobody", "squashed"),
)
SCRIPT = """
import sys
from worker.run_as.unix_account import answer_of, look_up
import orjson
user = look_up("ada").model_copy(update={"own_group": 2147400007})
print(orjson.dumps([user.model_dump(), {name: answer_of(name) for name in sys.argv[1:]}]).decode())
"""


@pytest.fixture(scope="module")
def looked_up(tmp_path_factory: pytest.TempPathFactory) -> tuple[RankUser, dict[str, str]]:
    """The user for the account ada, and the answers about all accounts."""
    covered = write_accounts(tmp_path_factory.mktemp("accounts"))
    words = with_accounts(covered, (sys.executable, "-c", SCRIPT, *NAMES))
    env = {**os.environ, "PYTHONPATH": packages()}
    done = subprocess.run(words, capture_output=True, text=True, env=env, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    user, answers = orjson.loads(done.stdout)
    return RankUser.model_validate(user), answers


@needs_root
def test_ids_and_groups_are_of_the_node(looked_up: tuple[RankUser, dict[str, str]]) -> None:
    user, _ = looked_up
    assert user == RankUser(
        uid=ADA,
        groups=(VISION,),  # not group 0, of which the account is a member
        own_group=2_147_400_007,
        account=NodeAccount(name="ada", gid=STAFF, home="/nowhere/ada", umask=0o027),
    )
    assert user.word == f"{ADA}:{STAFF}:23:2147400007:{VISION}"
    assert user.environment("x", Path("/x")) == {
        "USER": "ada",
        "LOGNAME": "ada",
        "HOME": "/nowhere/ada",
    }


@needs_root
def test_accounts_of_the_system_are_refused(looked_up: tuple[RankUser, dict[str, str]]) -> None:
    _, answers = looked_up
    assert answers == {
        "ada": 61801,
        "nemo": "has no account",
        "root": "has uid 0, and uids below 1000 belong to the system",
        "toor": "has uid 0, and uids below 1000 belong to the system",
        "daemon": "has uid 1, and uids below 1000 belong to the system",
        "system": "has uid 999, and uids below 1000 belong to the system",
        "wheel": "has the primary group 0, which belongs to the system",
        "hidden": "has id 2147400005; ids from 2001000000 on are of attempts",
        "nobody": "has uid 65534, which stands for unknown users",
        "squashed": "has uid 65534, which stands for unknown users",
    }


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ("UID_MIN 0\n", "has uid 0, and uids below 1 belong"),
        ("UID_MIN many\n", "uids below 1000 belong"),
        ("", "uids below 1000 belong"),
        (None, "uids below 1000 belong"),
    ],
)
def test_no_setting_of_the_system_admits_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: str | None, why: str
) -> None:
    path = tmp_path / "login.defs"
    if settings is not None:
        path.write_text(settings)
    monkeypatch.setattr("worker.run_as.unix_account.LOGIN_DEFS", path)
    assert why in str(answer_of("root"))


def test_a_directory_service_without_a_response_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(_name: str) -> None:
        raise TimeoutError(110, "Connection timed out")

    monkeypatch.setattr("pwd.getpwnam", hang)
    with pytest.raises(AccountRefusedError, match=r"cannot be looked up \(Connection timed out\)"):
        look_up("ada")
