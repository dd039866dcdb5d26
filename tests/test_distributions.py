"""The two wheels: what each puts into an environment, and what works with the library alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import typer
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.test_house_rules import source_files
from tools.release import DASHBOARD, ReleaseError, build
from tools.runtime_lock import runtime_lock_text

ROOT = Path(__file__).resolve().parent.parent
PROJECT_FILES = ("pyproject.toml", "library/pyproject.toml")
PROGRAMS = {"server", "worker", "trainer", "embedded", "provisioner", "migrations"}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both wheels, built from this tree, by the name of their project."""
    to = tmp_path_factory.mktemp("wheels")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", "1790000000")  # this tree may be no git checkout
        files = build(ROOT, to)
    return {path.name.partition("-")[0]: path for path in files if path.suffix == ".whl"}


def top_level(wheel: Path) -> set[str]:
    """What a wheel puts into site-packages, its own metadata apart."""
    with zipfile.ZipFile(wheel) as content:
        tops = {name.partition("/")[0] for name in content.namelist()}
    return {name for name in tops if not name.endswith((".dist-info", ".data"))}


def copied(to: Path, *, umask: int, seconds: int) -> Path:
    """Copy the source tree with files of another mode and time, and build the dashboard in it."""
    shown = 0o777 & ~umask
    for path in source_files():
        target = to / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        target.chmod(shown if os.access(path, os.X_OK) else shown & 0o666)
        os.utime(target, (seconds, seconds))
    (to / "web" / "node_modules").symlink_to(ROOT / "web" / "node_modules")
    npm = ["npm", "--prefix", str(to / "web"), "run", "--silent", "build"]
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # where `make setup` puts node
    subprocess.run(
        npm, check=True, capture_output=True, umask=umask, env=os.environ | {"PATH": programs}
    )
    return to


def test_two_builds_are_equal_byte_by_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1790000000")
    first = copied(tmp_path / "one", umask=0o022, seconds=1_600_000_000)
    second = copied(tmp_path / "far" / "away" / "two", umask=0o077, seconds=1_700_000_000)
    former = os.umask(0o022)
    try:
        one = build(first, tmp_path / "1")
        os.umask(0o077)
        two = build(second, tmp_path / "2")
    finally:
        os.umask(former)
    assert [path.name for path in one] == [path.name for path in two]
    for a, b in zip(one, two, strict=True):
        assert a.read_bytes() == b.read_bytes(), a.name
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1790000002")
    later = build(second, tmp_path / "3")
    assert later[0].read_bytes() != two[0].read_bytes(), "the time of the commit is in the wheels"


def test_the_programs_carry_the_dashboard_and_the_lock(wheels: dict[str, Path]) -> None:
    lock = (ROOT / "deploy" / "constraints.txt").read_bytes()
    with zipfile.ZipFile(wheels["trainyard_programs"]) as content:
        (name,) = [n for n in content.namelist() if n.endswith("/share/trainyard/constraints.txt")]
        assert content.read(name) == lock
        assert b"<!doctype html>" in content.read("server/web_dist/index.html").lower()
    assert (wheels["trainyard_programs"].parent / "constraints.txt").read_bytes() == lock


def test_the_programs_carry_units_and_manifests(wheels: dict[str, Path]) -> None:
    """Who has only the files of a release has no `deploy/`."""
    deploy = ROOT / "deploy"
    expected = {f"systemd/{path.name}": path for path in deploy.glob("*.service")}
    expected |= {f"kubernetes/{path.name}": path for path in (deploy / "kubernetes").iterdir()}
    expected["sources.toml"] = deploy / "sources.toml"
    expected["constraints.txt"] = deploy / "constraints.txt"
    with zipfile.ZipFile(wheels["trainyard_programs"]) as content:
        shared = {
            name.partition("/share/trainyard/")[2]: content.read(name)
            for name in content.namelist()
            if "/share/trainyard/" in name
        }
    assert shared == {name: path.read_bytes() for name, path in expected.items()}


def test_the_lock_pins_every_dependency_of_a_release_and_no_tool() -> None:
    lines = runtime_lock_text().splitlines()
    users = {
        canonicalize_name(line.partition("==")[0]): line.partition("#")[2].split()
        for line in lines
        if not line.startswith("#")
    }
    projects = [tomllib.loads((ROOT / f).read_text())["project"] for f in PROJECT_FILES]
    optional = projects[0]["optional-dependencies"]
    needed = {extra: optional[extra] for extra in optional.keys() - {"test", "dev"}}
    needed["library"] = projects[1]["dependencies"]
    for extra, requirements in needed.items():
        names = {canonicalize_name(Requirement(each).name) for each in requirements}
        for name in names - {"trainyard-library", "trainyard-programs"}:
            assert extra in users[name], (extra, name)
    assert "amqp" in users, "kombu needs it, which celery needs"
    assert not {"pytest", "mypy", "ruff", "hypothesis"} & users.keys()


def test_a_build_without_dashboard_or_commit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ReleaseError, match=r"web/dist/index\.html is missing"):
        build(tmp_path, tmp_path / "to")
    (tmp_path / DASHBOARD).parent.mkdir(parents=True)
    (tmp_path / DASHBOARD).touch()
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    with pytest.raises(ReleaseError, match="SOURCE_DATE_EPOCH"):
        build(tmp_path, tmp_path / "to")
    assert not (tmp_path / "to").exists()


def test_a_tree_that_differs_from_its_commit_gets_no_wheels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    root, to = tmp_path / "tree", tmp_path / "to"
    (root / DASHBOARD).parent.mkdir(parents=True)
    (root / DASHBOARD).touch()
    git = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@example.com"]
    subprocess.run([*git, "init", "--quiet"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "--quiet", "-m", "first"], check=True)
    with pytest.raises(ReleaseError, match="no wheel of library"):
        build(root, to)
    (to / "constraints.txt").write_text("of a build before")
    (root / "new.py").touch()
    with pytest.raises(ReleaseError, match=r"differs from its commit[^$]*\?\? new\.py"):
        build(root, to)
    assert list(to.iterdir()) == []


def test_the_library_puts_one_package_into_an_environment(wheels: dict[str, Path]) -> None:
    assert wheels.keys() == {"trainyard_library", "trainyard_programs"}
    assert top_level(wheels["trainyard_library"]) == {"trainyard"}
    assert top_level(wheels["trainyard_programs"]) == PROGRAMS


def test_programs_are_pinned_to_the_library_of_their_release(wheels: dict[str, Path]) -> None:
    version = wheels["trainyard_library"].name.split("-")[1]
    with zipfile.ZipFile(wheels["trainyard_programs"]) as content:
        (name,) = [each for each in content.namelist() if each.endswith(".dist-info/METADATA")]
        metadata = content.read(name).decode()
    assert f"Requires-Dist: trainyard-library=={version}\n" in metadata
    assert wheels["trainyard_programs"].name.split("-")[1] == version


def test_the_command_of_the_library_alone_names_the_missing_package(
    wheels: dict[str, Path], tmp_path: Path
) -> None:
    python, site = fresh_environment(tmp_path / "library", wheels["trainyard_library"])
    # Third-party packages come from this environment; its editable programs are not on the path.
    (site / "third_party.pth").write_text(f"{Path(typer.__file__).parents[1]}\n")
    run = [str(python), "-I", "-m", "trainyard"]
    ran = subprocess.run([*run, "up"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ran.returncode == 2, ran.stdout + ran.stderr
    assert "Install trainyard-programs[embedded]" in ran.stderr
    helped = subprocess.run([*run, "--help"], capture_output=True, text=True, check=True)
    assert "submit" in helped.stdout


def test_each_distribution_alone_offers_the_command(wheels: dict[str, Path]) -> None:
    """`pipx` and `uv tool install` expose the scripts of one distribution."""
    for wheel in wheels.values():
        with zipfile.ZipFile(wheel) as content:
            (name,) = [n for n in content.namelist() if n.endswith("/entry_points.txt")]
            assert "\ntrainyard = trainyard.cli.app:main\n" in content.read(name).decode()


def test_the_command_refuses_to_run_among_files_of_the_other_project(
    wheels: dict[str, Path], tmp_path: Path
) -> None:
    python, site = fresh_environment(tmp_path / "both", wheels["trainyard_library"])
    (site / "third_party.pth").write_text(f"{Path(typer.__file__).parents[1]}\n")
    other = site / "trainyard-0.0.3.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: trainyard\nVersion: 0.0.3\n")
    run = [str(python), "-I", "-m", "trainyard", "--help"]
    (other / "RECORD").write_text("trainyard/__init__.py,,\n")
    refused = subprocess.run(run, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert refused.returncode == 1
    assert "the distribution `trainyard` 0.0.3 has installed its files" in refused.stderr
    (other / "RECORD").write_text("__editable__.trainyard.pth,,\n")  # ours, from before 1.0
    subprocess.run(run, capture_output=True, check=True, cwd=tmp_path)


def test_both_wheels_in_a_fresh_environment_offer_every_program(
    wheels: dict[str, Path], tmp_path: Path
) -> None:
    _, site = fresh_environment(tmp_path / "both", *wheels.values())
    found = {path.name for path in site.iterdir() if (path / "__init__.py").exists()}
    assert found == {"trainyard", *PROGRAMS}


@pytest.mark.parametrize(
    "uses",
    [
        "import trainyard.run",
        "from trainyard.data import ExactSampler",
        "import trainyard; trainyard.data.ExactSampler",
        "import trainyard; trainyard.log({'loss': 1.0}, step=1)",
        "import trainyard.wandb as wandb; wandb.init().log({'loss': 1.0})",
    ],
)
def test_what_scripts_import_needs_nothing_but_a_bare_interpreter(uses: str) -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'library')!r}); {uses}"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)


def fresh_environment(folder: Path, *wheels: Path) -> tuple[Path, Path]:
    """Return the interpreter and site-packages of a new environment that holds the wheels."""
    venv.create(folder)
    (site,) = (folder / "lib").glob("python*/site-packages")
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    words = ["install", "--quiet", "--no-deps", "--no-index", *map(str, wheels)]
    subprocess.run([*pip, *words], check=True)
    return python, site
