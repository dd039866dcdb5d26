"""Command line: `python -m provisioner` serves the sources that one machine can reach."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from provisioner.settings import Settings, read_sources
from trainyard.protocol.rest.errors import ApiError

logger = logging.getLogger("provisioner")

# Each command has its own imports; for example, a check of the file needs no Celery.


def main() -> int:
    """Run one command of the provisioner."""
    arguments = _parser().parse_args()
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)  # httpx logs every report
    try:
        if arguments.command == "bundle":
            return _bundle(arguments.to, arguments.wheels, arguments.requirement)
        if arguments.command == "conform":
            return _conform(arguments.file, arguments.source)
        return _serve(arguments.config)
    except (ValueError, ApiError) as error:
        logger.error("%s", error)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m provisioner",
        description=(
            "Reaches the engines that nodes come from; settings are TRAINYARD_* environment "
            "variables, and SIGHUP reads the file of sources again."
        ),
    )
    parser.add_argument(
        "--config", type=Path, default=Path("sources.toml"), help="file of sources (sources.toml)"
    )
    commands = parser.add_subparsers(dest="command")
    bundle = commands.add_parser(
        "bundle", help="write the worker and the trainer as wheels, for machines that ssh reaches"
    )
    bundle.add_argument("to", type=Path, help="the tar file")
    bundle.add_argument(
        "--wheels",
        type=Path,
        help="folder of the wheels, those of Trainyard, of their dependencies and of pip, which "
        "`pip download` fetches (docs/ssh.md); default: made of this environment's packages",
    )
    bundle.add_argument(
        "--requirement",
        action="append",
        default=[],
        help="further package of the bundle from the same wheels, such as trainyard-programs[s3]; "
        "may be repeated",
    )
    conform = commands.add_parser(
        "conform", help="check a Kubernetes cluster with one small Job (docs/kubernetes.md)"
    )
    conform.add_argument("file", type=Path, help="file of sources")
    conform.add_argument("source", help="name of a source of kind kubernetes")
    return parser


def _conform(file: Path, name: str) -> int:
    """Print the findings line by line; return 1 if a check failed."""
    sources = {each.name: each for each in read_sources(file)}
    if name not in sources or sources[name].kind != "kubernetes":
        known = ", ".join(each.name for each in sources.values() if each.kind == "kubernetes")
        raise ValueError(f"source {name!r} is not one of kind kubernetes in {file} ({known})")
    try:
        from provisioner.kubernetes.conform import Conformance
    except ImportError as error:
        raise ValueError(
            f"{error}; install trainyard-programs[provisioner,kubernetes] (docs/install.md)"
        ) from error
    with TemporaryDirectory() as folder:
        failed = False
        for each in Conformance(sources[name], Path(folder)).run():
            sys.stdout.write(
                f"{'ok  ' if each.passed else 'FAIL'}  {each.name:<18} {each.detail}\n"
            )
            sys.stdout.flush()
            failed |= not each.passed
    return int(failed)


def _bundle(to: Path, wheels: Path | None, requirements: list[str]) -> int:
    from provisioner.base import SourceError
    from provisioner.ssh.bundle import REQUIREMENTS, make_bundle

    try:
        made = make_bundle(to, wheels=wheels, requirements=(*REQUIREMENTS, *requirements))
    except (SourceError, OSError) as error:
        logger.error("%s", error)
        return 1
    size = to.stat().st_size / 1e6
    logger.info("%s: %.0f MB for Python %s, digest %s", to, size, made.python, made.digest)
    return 0


def _serve(config: Path) -> int:
    """Serve until SIGTERM; on SIGHUP, exec this program again to read the changed file."""
    from provisioner.app import consume, create_app, join, open_source

    settings = Settings()
    opened = [open_source(settings, each) for each in read_sources(config)]
    sources = {}
    for source in opened:
        name = source.config.name
        try:
            join(settings, source)
        except (ValueError, ApiError) as error:
            logger.error("source %s is left out: %s", name, error)
            continue
        logger.info("source %s (%s) is registered", name, source.config.kind)
        sources[name] = source
    if not sources:
        raise ValueError("no source could be registered")
    reload = _Reload(config, settings)
    consume(create_app(settings, sources), when_ready=reload.watch)
    if reload.wanted:
        os.execv(sys.executable, [sys.executable, "-m", "provisioner", *sys.argv[1:]])
    return 0


class _Reload:
    """Handles SIGHUP: if the changed file is valid, Celery ends once all calls have ended.

    `_serve` then executes this program again.
    """

    def __init__(self, config: Path, settings: Settings) -> None:
        self._config = config
        self._settings = settings
        self.wanted = False
        """Whether the process must restart itself."""

    def watch(self) -> None:
        """Handle SIGHUP, at which Celery would otherwise restart itself."""
        signal.signal(signal.SIGHUP, self._reload)

    def _reload(self, *_: object) -> None:
        from provisioner.app import open_source

        try:
            for each in read_sources(self._config):
                open_source(self._settings, each)
        except ValueError as error:
            logger.error("the sources stay as they are: %s", error)
            return
        self.wanted = True
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
