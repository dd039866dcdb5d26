"""The wheels for GPU checks on a machine without a network."""

import ast
import importlib.metadata
import sys
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
# Imported only for Parquet files, object stores, TensorBoard files or downloads.
NEVER_IMPORTED = {"pyarrow", "s3fs", "botocore", "tensorboard", "huggingface-hub"}
NEVER_IMPORTED |= {"httpx", "pyyaml"}  # of modules that read files of people and call servers
NEVER_IMPORTED |= {"transformers"}  # of hub models, which the GPU check does not train


def wheels() -> set[str]:
    """Return the packages of `wheels.txt`."""
    lines = (ROOT / "tools/gpu_check/wheels.txt").read_text(encoding="utf-8").splitlines()
    return {canonicalize_name(line) for line in lines if not line.startswith("#")}


UNUSED = {"client", "cli", "adapters"}
"""Packages of the library that the trainer does not import."""


def test_the_wheels_hold_what_is_imported_and_what_that_needs() -> None:
    # torch for a GPU comes with triton.
    legal = wheels() | NEVER_IMPORTED | {"torch", "numpy", "triton"}
    providers = importlib.metadata.packages_distributions()
    packages = sorted((ROOT / "library" / "trainyard").iterdir())
    library = [str(path) for path in packages if path.name not in UNUSED]
    for part in (*library, "trainer", "benchmarks/trainer.py", "tools/gpu_check"):
        paths = [ROOT / part] if part.endswith(".py") else sorted((ROOT / part).rglob("*.py"))
        for path in paths:
            for package in _third_party(path):
                names = {canonicalize_name(name) for name in providers.get(package, [package])}
                assert names & legal, f"{path}: {package} is in no wheel"
    for name in wheels():
        for text in importlib.metadata.requires(name) or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                assert canonicalize_name(requirement.name) in legal, f"{name} needs {requirement}"


def _third_party(path: Path) -> set[str]:
    ours = {"trainyard", "trainer", "benchmarks", "tools"}
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found - ours - set(sys.stdlib_module_names) - {"__future__"}


def test_every_wheel_has_one_version() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {canonicalize_name(line.partition("==")[0]) for line in lines if "==" in line}
    assert wheels() <= pinned
