"""Make the images: stand-ins for the base images, and from these the images of `deploy/`.

Base images come from a registry of containers; here Debian's packages take their names. They are
built in the network of this machine, since pip and apt need their registries.
"""

from __future__ import annotations

import resource
import shlex
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

from tests.compose import machine
from tests.compose.machine import PLACE, PODMAN, REPOSITORY, podman, run

STAND_INS = Path(__file__).parent / "stand_ins"
NAMES = {
    "python": "python:3.12-slim",
    "postgres": "postgres:18",
    "redis": "redis:8",
    "haproxy": "haproxy:3.2",
}
"""Image that each stand-in stands for, in the order in which they are built."""
SUITES = ("bookworm", "trixie")
"""Bookworm has the Python for which a build of torch without CUDA lies on some machines."""
ARCHIVE = PLACE / "stand-ins.tar"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
COMPOSE = REPOSITORY / ".venv-compose" / "bin" / "podman-compose"


def main() -> None:
    """Make what is missing, and the images of `deploy/` anew."""
    began = time.monotonic()

    def report(what: str) -> None:
        sys.stderr.write(f"{time.monotonic() - began:6.0f} s  {what}\n")

    machine.make()
    configuration = pip_configuration()
    shown = local_folders(configuration)
    started = machine.start(CERTIFICATES, *shown)
    report("machine")
    podman("system", "reset", "--force")  # an earlier run may have been killed
    options = [*("--network", "host"), *limits(), *volumes(configuration, shown)]
    make_stand_ins(options)
    report("stand-ins")
    compose = [str(COMPOSE), "--podman-path", str(PODMAN)]
    compose += [f"--podman-build-args={shlex.join(options)}"]
    run([*compose, "build", "--build-arg", "CUDA=cpu", "server", "worker"])
    report("images of docker-compose.yml")
    podman(
        "build", *options, "--file", "deploy/provisioner.Dockerfile", "--tag", "provisioner", "."
    )
    report("image of the provisioner")
    started.kill()
    started.communicate()


def make_stand_ins(options: list[str]) -> None:
    """Load the stand-ins from the archive, or build them and write it."""
    files = [*STAND_INS.iterdir()]
    if ARCHIVE.exists() and ARCHIVE.stat().st_mtime > max(f.stat().st_mtime for f in files):
        podman("load", "--quiet", "--input", str(ARCHIVE))
        return
    for suite in SUITES:
        base = PLACE / f"{suite}.tar"
        if not base.exists():
            machine.debian(suite, base, "ca-certificates")
        podman("import", "--quiet", str(base), f"localhost/debian:{suite}")
    images = [f"docker.io/library/{name}" for name in NAMES.values()]
    for stand_in, image in zip(NAMES, images, strict=True):
        file = STAND_INS / f"{stand_in}.Dockerfile"
        podman("build", *options, "--file", str(file), "--tag", image, str(STAND_INS))
    ARCHIVE.unlink(missing_ok=True)
    podman("save", "--multi-image-archive", "--output", str(ARCHIVE), *images)


def limits() -> list[str]:
    """Return the options that keep the limits of this process: not every root may raise them."""
    kinds = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
    found = {name: resource.getrlimit(kind)[1] for name, kind in kinds.items()}
    return [f"--ulimit={name}={most}:{most}" for name, most in found.items()]


def pip_configuration() -> dict[str, str]:
    """Return what pip of this machine is configured to, but limits of versions."""
    words = (sys.executable, "-m", "pip", "config", "list")
    found = subprocess.run(words, capture_output=True, text=True, check=True)
    settings: dict[str, list[str]] = {}
    for line in found.stdout.splitlines():
        name, _, value = line.partition("=")
        where, _, key = name.rpartition(".")
        if where in ("global", ":env:") and key in ("index-url", "extra-index-url", "find-links"):
            settings.setdefault(key, []).extend(value.strip("'").split())
    return {key: " ".join(dict.fromkeys(values)) for key, values in settings.items()}


def local_folders(configuration: dict[str, str]) -> list[Path]:
    """Return the folders of this machine that pip's configuration names."""
    folders = []
    for word in " ".join(configuration.values()).split():
        # The pages of a local index lead to files next to them.
        is_index = word.startswith("file:")
        folders.append(Path(urlsplit(word).path).parent if is_index else Path(word))
    return [folder for folder in folders if folder.is_absolute() and folder.is_dir()]


def volumes(configuration: dict[str, str], folders: list[Path]) -> list[str]:
    """Return the options that show builds pip's configuration, and the folders that it names."""
    file = PLACE / "pip.conf"
    lines = [f"{key} = {value}" for key, value in configuration.items()]
    file.write_text("\n".join(["[global]", f"cert = {CERTIFICATES}", *lines, ""]))
    shown = {path: path for path in (CERTIFICATES, *folders)} | {file: Path("/etc/pip.conf")}
    return [word for path, place in shown.items() for word in ("--volume", f"{path}:{place}:ro")]


if __name__ == "__main__":
    main()
