"""The two wheels: what each puts into an environment, and what works with the library alone."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
import typer

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = {"server", "worker", "trainer", "embedded", "provisioner", "migrations"}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both wheels, built from this tree, by the name of their project."""
    to = tmp_path_factory.mktemp("wheels")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel"]
    words = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(to)]
    subprocess.run([*pip, *words, str(ROOT / "library"), str(ROOT)], check=True)
    return {path.name.partition("-")[0]: path for path in to.glob("*.whl")}


def top_level(wheel: Path) -> set[str]:
    """What a wheel puts into site-packages, its own metadata apart."""
    with zipfile.ZipFile(wheel) as content:
        tops = {name.partition("/")[0] for name in content.namelist()}
    return {name for name in tops if not name.endswith(".dist-info")}


def test_the_library_puts_one_package_into_an_environment(wheels: dict[str, Path]) -> None:
    assert wheels.keys() == {"trainyard", "trainyard_programs"}
    assert top_level(wheels["trainyard"]) == {"trainyard"}
    assert top_level(wheels["trainyard_programs"]) == PROGRAMS


def test_programs_are_pinned_to_the_library_of_their_release(wheels: dict[str, Path]) -> None:
    version = wheels["trainyard"].name.split("-")[1]
    with zipfile.ZipFile(wheels["trainyard_programs"]) as content:
        (name,) = [each for each in content.namelist() if each.endswith(".dist-info/METADATA")]
        metadata = content.read(name).decode()
    assert f"Requires-Dist: trainyard=={version}\n" in metadata
    assert wheels["trainyard_programs"].name.split("-")[1] == version


def test_the_command_of_the_library_alone_names_the_missing_package(
    wheels: dict[str, Path], tmp_path: Path
) -> None:
    python, site = fresh_environment(tmp_path / "library", wheels["trainyard"])
    # Third-party packages come from this environment; its editable programs are not on the path.
    (site / "third_party.pth").write_text(f"{Path(typer.__file__).parents[1]}\n")
    run = [str(python), "-I", "-m", "trainyard"]
    ran = subprocess.run([*run, "up"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ran.returncode == 2, ran.stdout + ran.stderr
    assert "pip install ./library '.[embedded]'" in ran.stderr
    helped = subprocess.run([*run, "--help"], capture_output=True, text=True, check=True)
    assert "submit" in helped.stdout


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
