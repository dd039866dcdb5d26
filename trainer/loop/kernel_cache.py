"""Compiled kernels that a node's jobs share: fetched before, and archived after, the first step.

torch loads the files in its caches as code. Therefore each attempt compiles in a folder of its run
directory, and only a job that brings no code gets an archive from the node. This module writes an
archive to the run directory, and only the worker copies it to the node's archive.
"""

from __future__ import annotations

import logging
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from trainer.distributed import Ranks
from trainer.parallel.compile import waiting_for_compilers
from trainer.run import TrainerRun
from trainyard.run.atomic import replacing
from trainyard.run.kernel_archive import LARGEST_ARCHIVE

logger = logging.getLogger("trainer")


@contextmanager
def first_compilation(run: TrainerRun, ranks: Ranks, mesh: DeviceMesh) -> Iterator[None]:
    """Provide kernels that earlier attempts compiled on this node; run the first step in the block.

    This is a collective. Before the block, each rank waits for its node's kernels. At the end, each
    rank waits for the compilers of all ranks. If the cache is damaged or the disk is full, the
    ranks compile anew.
    """
    cache = None
    if run.attempt.kernel_cache is not None and _compiles(run, ranks):
        cache = KernelCache(run, Path(run.attempt.kernel_cache))
        _on_each_node(cache.fetch, ranks)
    with waiting_for_compilers(run.spec, mesh, ranks.cpu_group):
        yield
    if cache is not None:
        dist.barrier(group=ranks.cpu_group)  # all of the node's kernels are written now
        if _leads_node():
            cache.archive()


def _compiles(run: TrainerRun, ranks: Ranks) -> bool:
    # On a GPU, eager code has Triton kernels too, for example for the loss.
    return run.spec.compile.enabled is True or ranks.device.type == "cuda"


def _leads_node() -> bool:
    return os.environ.get("LOCAL_RANK", "0") == "0"


def _on_each_node(action: Callable[[], None], ranks: Ranks) -> None:
    if _leads_node():
        action()
    dist.barrier(group=ranks.cpu_group)


class KernelCache:
    """Compile caches of one attempt on one node."""

    def __init__(self, run: TrainerRun, stored: Path) -> None:
        """Describe the caches; nothing is read or written yet.

        Args:
            run: the attempt. The caches of inductor and Triton lie in `kernels` in the run
                directory; the launcher has set this.
            stored: archive of the node, which this process only reads.
        """
        self._kernels = Path(run.directory.kernels)
        self._stored = stored
        self._archive = Path(run.directory.kernel_archive)
        self._fetched: frozenset[str] = frozenset()

    def fetch(self) -> None:
        """Unpack the node's archive, if any, into the attempt's own caches."""
        try:
            with zipfile.ZipFile(self._stored) as archive:
                files = archive.infolist()
                if sum(file.file_size for file in files) > LARGEST_ARCHIVE:
                    raise zipfile.BadZipFile("larger than any that is written")
                archive.extractall(self._kernels)  # verifies the CRC-32 of each file
        except FileNotFoundError:
            return
        except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile) as error:
            logger.warning("compiled kernels of earlier jobs cannot be used: %s", error)
            shutil.rmtree(self._kernels, ignore_errors=True)
            return
        self._fetched = frozenset(file.filename for file in files)

    def archive(self) -> None:
        """Archive all kernels for the worker; write an empty file if the node has them already, and
        nothing if there are none or if they exceed `LARGEST_ARCHIVE`."""
        files = sorted(_files(self._kernels))
        if not files:
            return
        if sum((self._kernels / name).stat().st_size for name in files) > LARGEST_ARCHIVE:
            logger.info("compiled kernels exceed %d bytes and are not shared", LARGEST_ARCHIVE)
            return
        try:
            with replacing(self._archive, durable=False) as file:
                os.fchmod(file.fileno(), 0o644)  # the worker may run as another user
                if frozenset(files) != self._fetched:
                    with zipfile.ZipFile(file, "w") as archive:
                        for name in files:
                            archive.write(self._kernels / name, name)
        except OSError as error:
            logger.warning("compiled kernels are not shared: %s", error)


def _files(folder: Path) -> Iterator[str]:
    """Yield the relative paths of a cache's finished files, without locks and drafts."""
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "locks" and not _is_draft(name)]
        for name in names:
            if not _is_draft(name):
                yield str((Path(parent) / name).relative_to(folder))


def _is_draft(name: str) -> bool:
    return name.startswith((".", "tmp")) or name.endswith((".tmp", ".lock"))
