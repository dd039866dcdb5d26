"""Named profiles on the command line, and a control plane that does not touch them."""

from __future__ import annotations

from pathlib import Path

import pytest

from embedded.__main__ import main
from embedded.access import let_user_in
from embedded.folders import Folders
from tests.library.conftest import Run, Yard
from trainyard.client.settings import choose_profile, config_path


def test_a_server_is_kept_and_found_under_a_name(
    yard: Yard, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    login = run("login", yard.url, "--token", yard.token, "--profile", "lab")
    assert login.exit_code == 0, login.output
    assert "profiles/lab.json" in login.output
    for name in ("TRAINYARD_URL", "TRAINYARD_TOKEN"):
        monkeypatch.delenv(name)
    assert run("--profile", "lab", "nodes").exit_code == 0
    assert run("nodes").exit_code == 2
    monkeypatch.setenv("TRAINYARD_PROFILE", "lab")
    assert run("nodes").exit_code == 0
    unknown = run("--profile", "none", "nodes")
    assert unknown.exit_code == 2
    assert "known: default, lab" in unknown.output
    assert run("--profile", "../x", "nodes").exit_code == 2


def test_a_control_plane_without_a_profile_leaves_the_users_files_alone(
    yard: Yard, tmp_path: Path
) -> None:
    folders = Folders(tmp_path / "data")
    folders.make()
    with yard.connect() as admin:
        let_user_in(folders, admin, profile=None)
        assert folders.user_token.read_text().startswith("ty_api_")
        assert not config_path().parent.exists()
        let_user_in(folders, admin, profile="demo")
        assert config_path().name == "demo.json"
        choose_profile(None)
        assert not config_path().exists()


def test_up_refuses_a_profile_that_is_no_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["up", "--data", str(tmp_path / "data"), "--profile", "../x"])
    assert "a name is letters" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()
