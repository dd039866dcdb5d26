"""A thief of a site's secrets: the places to search, and the use of a join secret."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from tests.provisioner.site import Site
from trainyard.protocol.node_sources.messages import PilotIdentity, pilot_name
from trainyard.protocol.worker_messages import (
    PROTOCOL,
    Hardware,
    Registration,
    WorkerIdentity,
)

KEEPERS = frozenset({"secrets", "token", "node.token", "admin.token", "broker.conf"})
"""Names of the files that hold secrets: readable by their owner alone."""
MAX_BYTES = 64 * 2**20
CALL = """
import json, sys, urllib.error, urllib.request
url, secret, body = json.load(sys.stdin)
headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
try:
    with urllib.request.urlopen(urllib.request.Request(url, body.encode(), headers)) as answer:
        print(json.dumps([answer.status, ""]))
except urllib.error.HTTPError as error:
    print(json.dumps([error.code, json.load(error)["detail"]]))
"""


def assert_no_secret_is_shown(site: Site) -> None:
    """Verify that no command line, environment of a pilot, script, log or spool has a secret.

    Each file below the folder of the site is read, whoever wrote it: Slurm's too.
    """
    pattern = re.compile(b"|".join(map(re.escape, secrets_of(site))))
    shown = [path for path in files_with(pattern, site.folder) if not _keeps(path)]
    assert not shown
    words = {path: _read(path) for path in Path("/proc").glob("[0-9]*/cmdline")}
    assert not [path for path, text in words.items() if pattern.search(text)]
    own = _network(Path("/proc/self"))
    machines = [each.parent for each in words if _network(each.parent) not in (own, None)]
    assert machines  # the nodes, the pilots and their ranks: each node has a network of its own
    variables = {folder: _read(folder / "environ") for folder in machines}
    assert not [folder for folder, text in variables.items() if pattern.search(text)]


def secrets_of(site: Site) -> set[bytes]:
    """Return the join secrets and tokens of a site, and the password of its broker."""
    names = ("secrets", "token", "node.token", "admin.token")
    files = [path for name in names for path in site.folder.rglob(name) if path.is_file()]
    found = {word for path in files for word in path.read_bytes().split() if len(word) > 20}
    password = urlsplit(site.plane.broker_url).password
    assert password
    assert {"secrets", "token", "admin.token"} <= {path.name for path in files}
    return found | {password.encode()}


def files_with(pattern: re.Pattern[bytes], folder: Path) -> list[Path]:
    """Return the regular files below a folder that contain a pattern."""
    paths = (Path(where, name) for where, _, names in os.walk(folder) for name in names)
    return [path for path in paths if pattern.search(_read(path))]


def _keeps(path: Path) -> bool:
    return path.name in KEEPERS and not stat.S_IMODE(path.stat().st_mode) & 0o077


def _read(path: Path) -> bytes:
    with suppress(OSError):  # it has ended, or is gone
        if stat.S_ISREG(path.lstat().st_mode):
            with path.open("rb") as file:
                return file.read(MAX_BYTES)
    return b""


def _network(process: Path) -> int | None:
    with suppress(OSError):
        return (process / "ns" / "net").stat().st_ino
    return None


class Thief:
    """A person with the join secret of the only pilot of a request."""

    def __init__(self, site: Site, request_id: str) -> None:
        (secrets,) = site.folder.glob(f"state/sources/*/requests/{request_id}/secrets")
        self._secret = secrets.read_text().split()[0]
        self._source = secrets.parents[2].name
        self._request_id = request_id
        self._url = f"{site.pilots_url}/api/v1/workers/register"

    def joins(self, instance: str, *, within: Sequence[str]) -> tuple[int, str]:
        """Register as an instance of the pilot; return status and detail of the answer.

        Args:
            instance: name of the pilot's life that the thief claims.
            within: command before the client's, which enters the machine that it calls from.
        """
        registration = Registration(
            protocol=PROTOCOL,
            node=pilot_name(self._source, self._request_id, 0),
            address="10.0.0.1",
            hardware=Hardware(
                device="cpu",
                slots=1,
                device_name="thief",
                device_memory_bytes=2**30,
                cores=1,
                memory_bytes=2**30,
            ),
            roots={},
            worker=WorkerIdentity(folder="0" * 32, boot_id="00000000"),
            version="0",
            inbox="server",
            pilot=PilotIdentity(request_id=self._request_id, index=0, instance=instance),
        )
        done = subprocess.run(
            [*within, sys.executable, "-c", CALL],
            input=json.dumps([self._url, self._secret, registration.model_dump_json()]),
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        status, detail = json.loads(done.stdout)
        return status, detail
