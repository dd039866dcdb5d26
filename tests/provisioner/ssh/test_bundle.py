"""Bundles: built from a folder or this environment, installed once, and removed when unused."""

from __future__ import annotations

import importlib.metadata
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from provisioner.__main__ import main
from provisioner.base import SourceError
from provisioner.ssh.bundle import make_bundle, read_bundle
from tests.provisioner.ssh.conftest import Network, submission, wait_for

PILOT = """
import signal, sys, tiny
print("pilot", sys.argv[1], "of version", tiny.VERSION, "in", sys.prefix, flush=True)
signal.sigwait({signal.SIGTERM})
"""
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


def make_wheel(
    folder: Path, name: str, *, version: str, files: dict[str, str], requires: Sequence[str] = ()
) -> None:
    """Write a wheel of pure Python."""
    info = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {each}\n" for each in requires)
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}"
    wheel = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files = {**files, f"{info}/METADATA": metadata, f"{info}/WHEEL": wheel}
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as file:
        for path, text in files.items():
            file.writestr(path, text)
        file.writestr(f"{info}/RECORD", "".join(f"{path},,\n" for path in [*files]))


def make_wheels(folder: Path, version: str) -> Path:
    """Write a small worker, and the package that it needs."""
    needs = ["tiny>=1", 'absent; extra == "trainer"', 'old; python_version < "3"']
    worker = {"worker/__init__.py": "", "worker/__main__.py": PILOT}
    make_wheel(folder, "trainyard_programs", version=version, files=worker, requires=needs)
    make_wheel(folder, "tiny", version=version, files={"tiny.py": f"VERSION = {version!r}\n"})
    return folder


@pytest.mark.slow
def test_a_bundle_is_installed_once_and_removed_when_unused(
    network: Network, tmp_path: Path
) -> None:
    network.add("a")
    former = make_bundle(
        tmp_path / "1.tar",
        wheels=make_wheels(tmp_path / "1", "1.0"),
        requirements=["trainyard-programs[worker]", "pip"],
    )
    source = network.source("a", python=sys.executable, bundle=str(former.path))
    first = submission(tmp_path)
    source.submit(first)
    log = network.request("a", first.request_id) / "log"
    installed = network.folder / "a" / "yard" / "bundles" / former.digest
    wait_for(lambda: log.read_text().endswith(f"pilot of version 1.0 in {installed}/venv\n"), "log")
    source.submit(first)
    assert sorted(path.name for path in installed.iterdir()) == [
        "SHA256SUMS", "manifest.json", "ready", "venv",
    ]  # fmt: skip

    newer = make_bundle(
        tmp_path / "2.tar",
        wheels=make_wheels(tmp_path / "2", "2.0"),
        requirements=["trainyard-programs[worker]", "pip"],
    )
    newer_source = network.source("a", python=sys.executable, bundle=str(newer.path))
    second = submission(tmp_path)
    with pytest.raises(SourceError, match="0 machines are free"):
        newer_source.submit(second)  # and the running worker keeps its version
    assert (installed / "ready").exists()
    source.cancel(first.request_id)
    wait_for(lambda: source.status([first.request_id])[0].gone, "end")
    newer_source.submit(second)
    seen = network.request("a", second.request_id) / "log"
    wait_for(lambda: "of version 2.0" in seen.read_text(), "log")
    assert installed.exists()  # a recent pilot used it
    network.request("a", first.request_id).joinpath("bundle").write_text("-\n")
    newer_source.cancel(second.request_id)
    wait_for(lambda: source.status([second.request_id])[0].gone, "end")
    newer_source.submit(submission(tmp_path))
    assert not installed.exists()


def test_a_copy_that_is_cut_off_or_damaged_is_not_installed(
    network: Network, tmp_path: Path
) -> None:
    network.add("a")
    wheels = make_wheels(tmp_path / "1", "1.0")
    bundle = make_bundle(tmp_path / "1.tar", wheels=wheels, requirements=["tiny", "pip"])
    damaged = tmp_path / "damaged.tar"
    content = bytearray(bundle.path.read_bytes())
    with tarfile.open(bundle.path) as tar:
        place = next(m.offset_data for m in tar if m.name.startswith("wheels/tiny"))
    content[place + 40] ^= 1
    damaged.write_bytes(content)
    source = network.source("a", python=sys.executable, bundle=str(damaged))
    with pytest.raises(SourceError, match=r"did NOT match\nbundle\.tar is damaged"):
        source.submit(submission(tmp_path))
    assert source.list().jobs == []
    good = network.source("a", python=sys.executable, bundle=str(bundle.path))
    good.submit(submission(tmp_path))  # the same digest, copied again


def test_a_machine_without_the_bundles_python_is_refused(network: Network, tmp_path: Path) -> None:
    network.add("a")
    for name in ("python3", f"python{VERSION}"):
        old = network.folder / "a" / "bin" / name
        old.write_text("#!/bin/sh\necho 3.9\n")
        old.chmod(0o755)
    bundle = make_bundle(
        tmp_path / "1.tar",
        wheels=make_wheels(tmp_path / "1", "1.0"),
        requirements=["trainyard-programs"],
    )
    source = network.source("a", python="python3", bundle=str(bundle.path))
    with pytest.raises(SourceError, match=f"needs Python {VERSION}; .*/python3 is 3.9") as error:
        source.submit(submission(tmp_path))
    assert error.value.refused


def test_a_bundle_of_this_environment_has_what_is_needed(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "1.tar", requirements=["httpx", "pip"])
    with tarfile.open(bundle.path) as tar:
        names = tar.getnames()
        tar.extractall(tmp_path / "1", filter="data")
    version = importlib.metadata.version("httpx")
    assert f"wheels/httpx-{version}-py3-none-any.whl" in names
    assert any(name.startswith("wheels/certifi-") for name in names)
    assert not any(name.startswith("wheels/h2-") for name in names)  # of an extra
    again = make_bundle(tmp_path / "2.tar", requirements=["httpx", "pip"])
    assert again.digest == bundle.digest == read_bundle(bundle.path).digest


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    wheels = make_wheels(tmp_path / "1", "1.0")
    with pytest.raises(SourceError, match="has no wheel of absent"):
        make_bundle(tmp_path / "1.tar", wheels=wheels, requirements=["trainyard-programs[trainer]"])
    with pytest.raises(SourceError, match=r"the bundle needs tiny>=2, and tiny is 1\.0"):
        make_bundle(tmp_path / "1.tar", wheels=wheels, requirements=["tiny>=2"])
    (tmp_path / "no.tar").write_text("nothing")
    with pytest.raises(SourceError, match=r"no\.tar' is no bundle"):
        read_bundle(tmp_path / "no.tar")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "no.tar"]


def test_the_command_writes_a_bundle_or_names_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wheels = make_wheels(tmp_path / "1", "1.0")
    words = ["provisioner", "bundle", str(tmp_path / "1.tar"), "--wheels", str(wheels)]
    monkeypatch.setattr(sys, "argv", words)
    assert main() == 1
    assert caplog.messages[-1].endswith("has no wheel of absent")
    make_wheel(wheels, "absent", version="1.0", files={})
    assert main() == 0
    assert read_bundle(tmp_path / "1.tar").python == VERSION
