"""Checks whether a source's allocation fits a pilot, and reports the findings."""

from __future__ import annotations

import importlib.util
import logging
import os
import platform
import secrets
import socket
import time
from collections.abc import Callable
from pathlib import Path

from trainyard.base.backoff import Retries, retry
from trainyard.outside.http_client import has_socks
from trainyard.outside.proxies import proxy_of, without_login
from trainyard.protocol.node_sources.messages import CheckReport, CheckResult
from trainyard.protocol.rest.errors import ApiError
from trainyard.protocol.worker_messages import PROTOCOL
from trainyard.spec.storage_uri import is_object_store
from worker.api import BACKOFF, ServerAway, WorkerApi
from worker.node.hardware.samples import sample_disk
from worker.pilot.allocation import OwnPilot
from worker.pilot.local_disk import make_local_folder, mount_of
from worker.settings import Settings
from worker.upkeep.roots import identify_roots

logger = logging.getLogger(__name__)

PACKAGES = ("trainyard", "worker", "trainer", "torch")
OLDEST_PYTHON = (3, 11)
MAX_SKEW_SECONDS = 5.0
LEAST_DISK_BYTES = 1024**3
"""Minimum free disk space for run directories and token caches, in bytes."""
TRIAL_BYTES = 64 * 1024**2
"""Number of bytes written to a storage root to measure the speed of saves."""
REPORT_SECONDS = 90.0
"""Time limit, in seconds, for sending the findings. The server accepts the findings once the engine
has listed the pilot, and the server requests this list every minute.
"""
NOT_NAMED = "/problems/pilot-not-named"


def probe(pilot: OwnPilot, settings: Settings, *, base: Path) -> int:
    """Check this allocation and report the findings; return the exit status.

    Args:
        pilot: this process as the pilot that checks.
        settings: settings that a worker would have here.
        base: parent folder for the data of pilots.

    Raises:
        ValueError: the join secret, which the report needs, is missing.
        ServerAway, ApiError: the server did not accept the findings.
    """
    secret = settings.join_secret(pilot.allocation.index)
    if secret is None:
        raise ValueError("TRAINYARD_JOIN_TOKEN_FILE is not set; findings are sent with its secret")
    with WorkerApi(settings.url, secret, ca_file=settings.ca_file) as api:
        checks: dict[str, Callable[[], str]] = {
            "route": lambda: _route(api),
            "tls": lambda: _tls(settings),
            "clock": lambda: _clock(api),
            "python": _python,
            "disk": lambda: _disk(base, pilot.folder),
            "roots": lambda: _roots(settings),
            "ports": lambda: _ports(settings),
            "save": lambda: _save(settings, pilot),
        }
        results = tuple(_result(name, check) for name, check in checks.items())
        for result in results:
            logger.info(
                "%s %s: %s", "ok" if result.passed else "FAILED", result.name, result.detail
            )
        report = CheckReport(protocol=PROTOCOL, pilot=pilot.identity, results=results)
        _send(api, report)
    return 0


def _send(api: WorkerApi, report: CheckReport) -> None:
    """Send the findings; the server accepts them once the engine has listed this pilot."""

    def may_pass(error: Exception) -> bool:
        is_unnamed = isinstance(error, ApiError) and error.problem.type == NOT_NAMED
        return is_unnamed or isinstance(error, ServerAway)

    retry(
        lambda: api.check(report),
        when=may_pass,
        retries=Retries(BACKOFF, for_seconds=REPORT_SECONDS),
    )


def _result(name: str, check: Callable[[], str]) -> CheckResult:
    """Return the result or the error of one check as a finding."""
    try:
        return CheckResult(name=name, passed=True, detail=check()[:2000])
    except Exception as error:  # noqa: BLE001 - any error is the finding
        return CheckResult(name=name, passed=False, detail=(str(error) or repr(error))[:2000])


def _route(api: WorkerApi) -> str:
    began = time.monotonic()
    api.server_date()
    proxy = proxy_of(api.url, os.environ, socks=has_socks())
    way = f"through {without_login(proxy)}" if proxy else "without a proxy"
    return f"{api.url} answers in {time.monotonic() - began:.2f} s ({way})"


def _tls(settings: Settings) -> str:
    if not settings.url.startswith("https:"):
        return f"{settings.url} is not encrypted: join secrets and tokens need a closed network"
    trusted = settings.ca_file or "the usual authorities"
    return f"the certificate is accepted by {trusted}"


def _clock(api: WorkerApi) -> str:
    began = time.time()
    date = api.server_date()
    # The `Date` header has a resolution of one second.
    skew, error = (began + time.time()) / 2 - (date + 0.5), (time.time() - began) / 2 + 0.5
    if abs(skew) - error > MAX_SKEW_SECONDS:
        raise ValueError(
            f"this clock differs from the server's by {skew:.1f} s; {MAX_SKEW_SECONDS:g} s are "
            "the most: set it by NTP"
        )
    return f"differs from the server's by {skew:.1f} s at an error of {error:.1f} s"


def _python() -> str:
    version = platform.python_version()
    if tuple(map(int, platform.python_version_tuple()[:2])) < OLDEST_PYTHON:
        raise ValueError(f"Python {version}; {'.'.join(map(str, OLDEST_PYTHON))} is the oldest")
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(f"Python {version} has no package {', '.join(missing)}")
    return f"Python {version} with {', '.join(PACKAGES)}"


def _disk(base: Path, name: str) -> str:
    folder = make_local_folder(base, name, setting="TMPDIR")
    folder.rmdir()
    free, mount = _free_bytes(base), mount_of(base)
    if free < LEAST_DISK_BYTES:
        raise ValueError(f"TMPDIR={base} has {free / 1e9:.1f} GB of room; 1 GB is needed")
    return f"{base} on {mount.path} ({mount.kind}) has {free / 1e9:.1f} GB of room"


def _roots(settings: Settings) -> str:
    roots = settings.root_paths()
    found = identify_roots(roots)
    who = f"user {os.geteuid()}, groups {sorted(os.getgroups())}"
    for name, place in roots.items():
        if is_object_store(place):
            continue
        trial = Path(place) / f".trial-{secrets.token_hex(8)}"
        try:
            trial.mkdir()
            trial.rmdir()
        except OSError as error:
            raise ValueError(f"root {name}={place} cannot be written by {who}: {error}") from None
    shown = ", ".join(f"{name}={place} ({found[name]})" for name, place in roots.items())
    return f"{shown}; written as {who}"


def _ports(settings: Settings) -> str:
    try:
        found = socket.getaddrinfo(settings.address, None)
    except OSError as error:
        raise ValueError(f"TRAINYARD_ADDRESS={settings.address} has no address: {error}") from None
    addresses = {str(each[4][0]) for each in found}
    with socket.create_server(("", 0), family=found[0][0]) as listener:  # IPv6 has its own ports
        port = listener.getsockname()[1]
        with socket.create_connection((settings.address, port), timeout=10):
            pass
    return f"{settings.address} ({', '.join(sorted(addresses))}) takes connections at port {port}"


def _save(settings: Settings, pilot: OwnPilot) -> str:
    """Return a text with the size of the largest save that can complete after a notice."""
    places = [p for p in settings.root_paths().values() if not is_object_store(p)]
    if not places:
        return "the roots are object stores, whose speed a job finds by its first save"
    place = Path(places[0])
    trial, began = place / f".trial-{secrets.token_hex(8)}", time.monotonic()
    try:
        with trial.open("xb") as file:
            for _ in range(TRIAL_BYTES // 2**20):
                file.write(os.urandom(2**20))
            file.flush()
            os.fsync(file.fileno())
        speed = TRIAL_BYTES / (time.monotonic() - began)
    finally:
        trial.unlink(missing_ok=True)
    free = _free_bytes(place)
    text = f"{place} has {free / 1e9:.1f} GB of room and takes {speed / 1e6:.0f} MB/s"
    if settings.notice_seconds is None:
        return f"{text}; TRAINYARD_NOTICE_SECONDS is not set: no save is left out for lack of time"
    fits = speed * settings.notice_seconds
    end = pilot.allocation.end()
    left = "" if end is None else f", {end - time.time():.0f} s before the end now"
    return (
        f"{text}: within {settings.notice_seconds:g} s of a notice a node saves {fits / 1e9:.1f} GB"
        f"{left}"
    )


def _free_bytes(folder: Path) -> int:
    return sample_disk("disk", folder).free_bytes
