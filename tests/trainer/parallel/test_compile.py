"""Compiled blocks: requirements of the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.errors import LaunchError
from trainer.parallel.compile import compile_blocks
from trainyard.spec.sections.parallelism import CompileSection

INDUCTOR = CompileSection(enabled=True)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole PATH; no variable names a compiler."""
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("CC", "CXX"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("device", "wanted", "enough"), [("cuda", "gcc or clang", "clang"), ("cpu", r"g\+\+", "g++")]
)
def test_a_machine_without_a_compiler_is_named_before_the_first_step(
    programs: Path, device: str, wanted: str, enough: str
) -> None:
    with pytest.raises(LaunchError, match=f"has no {wanted}: install one there, or set compile"):
        compile_blocks([], INDUCTOR, device_type=device)
    (programs / enough).touch(mode=0o755)
    compile_blocks([], INDUCTOR, device_type=device)


def test_a_compiler_that_the_environment_names_is_enough(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = programs / "mine"
    monkeypatch.setenv("CC", str(named))
    with pytest.raises(LaunchError, match="mine"):
        compile_blocks([], INDUCTOR, device_type="cuda")
    named.touch(mode=0o755)
    compile_blocks([], INDUCTOR, device_type="cuda")


def test_a_backend_without_kernels_needs_no_compiler(programs: Path) -> None:
    compile_blocks([], CompileSection(enabled=True, backend="aot_eager"), device_type="cpu")
