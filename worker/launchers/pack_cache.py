"""Packs on a node: fetched with an attempt's token, verified, and limited in total size."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from trainyard.base.backoff import Retries, retry
from trainyard.protocol.node_samples import DATA_DIR_FULL
from trainyard.protocol.rest.errors import ApiError
from worker.api import BACKOFF, ServerAway, WorkerApi
from worker.launchers.base import Share
from worker.node.folder_usage import evict
from worker.node.node_store import NodeStore

CACHE_BYTES = 2**30
"""Maximum size of all packs on a node, in bytes; the least recently used ones are removed first."""
FETCH_SECONDS = 60.0
"""Time, in seconds, for which a fetch is repeated while the server is unreachable."""
FETCHING = ".fetch-"
LEFT_SECONDS = 3600.0
"""Time without a write, in seconds, after which a partial file counts as left by a killed fetch."""


class PutBackError(Exception):
    """The node cannot get the code now; the job is not at fault."""

    def __init__(self, message: str, *, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


class _DamagedError(Exception):
    """The received content does not match the pack's digest."""


def fetch_pack(share: Share, digest: str) -> Path:
    """Return the archive of the pack with this digest; fetch a missing archive.

    Raises:
        PutBackError: the server is unreachable or sends other content, or the disk is full.
        ValueError: the server refuses the pack.
    """
    store = NodeStore(Path(share.launch.data_dir))
    archive = store.packs / f"{digest.removeprefix('sha256:')}.tar.gz"
    try:
        if archive.is_file() and _digest(archive) == digest:
            os.utime(archive)  # most recently used, so removed last
            return archive
        store.packs.mkdir(mode=0o700, exist_ok=True)
        remove_leftovers(store.packs)  # before the fetch, because leftovers may fill the disk
        token = share.run.secret.read_text(encoding="ascii").strip()
        with WorkerApi(store.server_url or "", token, ca_file=store.server_ca) as api:
            retry(
                lambda: _fetch(api, share.launch.attempt_id, archive=archive, digest=digest),
                when=lambda error: isinstance(error, ServerAway | _DamagedError),
                retries=Retries(BACKOFF, for_seconds=FETCH_SECONDS),
            )
        evict(store.packs, but=archive, suffix=".gz", most=CACHE_BYTES)
    except ApiError as error:
        raise ValueError(f"code.pack={digest!r}: {error}") from None
    except (ServerAway, _DamagedError) as error:
        raise PutBackError(
            f"code.pack={digest!r} could not be fetched: {error}",
            remedy="The next attempt fetches it again.",
        ) from None
    except OSError as error:
        raise no_space(store.data_dir, error) from None
    return archive


def no_space(folder: Path, error: OSError) -> PutBackError:
    """Return the error that puts a launch back because the disk is full."""
    return PutBackError(
        f"{DATA_DIR_FULL}: {folder}: {error.strerror or error}",
        remedy="Free space there; the next attempt goes to another node, or waits.",
    )


def _fetch(api: WorkerApi, attempt_id: str, *, archive: Path, digest: str) -> None:
    """Fetch a pack; only a complete pack that is on disk gets its final name."""
    with tempfile.NamedTemporaryFile(dir=archive.parent, prefix=FETCHING) as file:
        api.fetch_pack(attempt_id, file)
        file.flush()
        found = _digest(Path(file.name))
        if found != digest:
            raise _DamagedError(f"what arrived has the digest {found}")
        os.fsync(file.fileno())
        # Two attempts may fetch the pack at once; the later one replaces the file with equal
        # content.
        os.link(file.name, f"{file.name}.whole")
        Path(f"{file.name}.whole").replace(archive)


def _digest(archive: Path) -> str:
    with archive.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def remove_leftovers(folder: Path, *, now: float | None = None) -> None:
    """Remove partial files that killed fetches left."""
    now = time.time() if now is None else now
    for path in folder.glob(f"{FETCHING}*"):
        with suppress(FileNotFoundError):  # the fetch has just ended
            if now - path.lstat().st_mtime > LEFT_SECONDS:
                path.unlink()
