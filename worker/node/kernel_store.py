"""The node's archives of compiled kernels: one file per key, written only by the worker.

torch loads compiled kernels as code, so no job may write a file that another job loads. Ranks write
an archive to their run directory. The supervisor copies the archive to the node's folder only if
nothing but the trainer can have written it. So the job must bring no code, no person may have run a
command in the attempt, and no other job may write to this job's files.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import os
import platform
import shutil
import time
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

from trainyard.protocol.node_samples import DATA_DIR_BYTES
from trainyard.run.atomic import replacing
from trainyard.run.kernel_archive import LARGEST_ARCHIVE
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout
from worker.node.files import open_regular
from worker.node.folder_usage import evict, remove_tree
from worker.node.node_store import WorkerRun

logger = logging.getLogger(__name__)

STORE_BYTES = 2 * 2**30
"""Maximum size of all archives on a node, in bytes; the least recently used are removed first."""
LEFT_SECONDS = 3600.0
"""Age, in seconds, at which a partial archive counts as left by a killed supervisor."""
OF_TRAINING = {
    *("seq_len", "micro_batch_size", "param_dtype", "weight_dtype", "reduce_dtype"),
    "deterministic",
}
"""Fields of `training` that compiled kernels depend on."""
SECTIONS = ("model", "parallelism", "activation_checkpoint", "compile", "quantization")
"""Sections of the spec that compiled kernels depend on."""
CPU_INFO = Path("/proc/cpuinfo")
OF_CPU = ("vendor_id", "cpu family", "model", "flags", "CPU implementer", "CPU part", "Features")
"""Fields of `/proc/cpuinfo` by which a compiler selects instructions, on x86 and ARM."""


class KernelStore:
    """Kernels of one attempt: the node's archive, and the caches in the run directory."""

    def __init__(self, run: WorkerRun, archive: str | None) -> None:
        """Describe the store; nothing is read yet.

        Args:
            run: the run directory.
            archive: the node's archive for attempts with the same key; None if the attempt shares
                no archive.
        """
        self._run = run
        self._kept = None if archive is None else Path(archive)

    def keep_none(self) -> None:
        """Copy no archive from now on, because another program runs with the ranks' rights."""
        self._kept = None

    def poll(self) -> None:
        """Copy the archive that the ranks write after their first step.

        A failure is only logged; the next attempt then compiles its kernels again.
        """
        if self._kept is None or not os.path.lexists(self._run.kernel_archive):
            return
        kept, self._kept = self._kept, None
        try:
            self._keep(kept)
        except OSError as error:
            logger.warning("compiled kernels are not kept: %s", error)

    def close(self) -> None:
        """Copy a new archive, then remove the caches; all ranks must have ended before."""
        self.poll()
        if os.path.lexists(self._run.kernels):
            remove_tree(Path(self._run.kernels))
        with suppress(OSError):
            Path(self._run.kernel_archive).unlink()

    def _keep(self, kept: Path) -> None:
        folder = kept.parent
        with open_regular(self._run.kernel_archive, owner=self._run.writer) as archive:
            size = os.fstat(archive.fileno()).st_size
            if not size:  # the node's archive already had all kernels of the ranks
                with suppress(FileNotFoundError):
                    os.utime(kept)
                return
            _remove_leftovers(folder)
            room = shutil.disk_usage(folder).free - DATA_DIR_BYTES
            if size > min(LARGEST_ARCHIVE, room):
                logger.info("compiled kernels of %d bytes are not kept: no room", size)
                return
            with replacing(kept) as file:
                os.fchmod(file.fileno(), 0o644)  # ranks of any user read the archive
                shutil.copyfileobj(archive, file)
        evict(folder, but=kept, suffix=".zip", most=STORE_BYTES)


def _remove_leftovers(folder: Path) -> None:
    for path in folder.glob(".*.part"):
        with suppress(FileNotFoundError):  # the writing supervisor has just renamed it
            if time.time() - path.lstat().st_mtime > LEFT_SECONDS:
                path.unlink()


def kernel_key(spec: JobSpec, layout: Layout, *, threads: str) -> str:
    """Return the SHA-256 of everything that affects an attempt's kernels, in hexadecimal.

    One archive contains only kernels of attempts with the same key. torch itself compares graph,
    versions and GPU of each entry, but not the CPU. The key contains the CPU, because kernels use
    its instructions, and a data folder may move to another machine or serve several machines.

    Args:
        spec: the effective spec.
        layout: layout of the attempt.
        threads: `OMP_NUM_THREADS` of the attempt's ranks.
    """
    facts = {
        "torch": version("torch"),
        "python": platform.python_version(),
        "code": _code(),
        "cpu": _cpu(),
        "threads": threads,
        "layout": layout.model_dump(mode="json"),
        "document_masks": spec.data.document_masks,
        "training": spec.training.model_dump(mode="json", include=OF_TRAINING),
        **{name: getattr(spec, name).model_dump(mode="json") for name in SECTIONS},
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _cpu() -> list[str]:
    """Return the CPU fields of each kind of CPU here; empty if the system lists no CPUs."""
    try:
        lines = CPU_INFO.read_text().splitlines()
    except OSError:
        return []
    return sorted({line for line in lines if line.partition(":")[0].strip() in OF_CPU})


@lru_cache(maxsize=1)
def _code() -> str:
    """Return a digest of the trainer's own code."""
    found = importlib.util.find_spec("trainer")  # imports nothing of the package
    assert found is not None, "its package is installed"
    assert found.origin is not None
    digest, folder = hashlib.sha256(), Path(found.origin).parent
    for path in sorted(folder.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder)}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()
