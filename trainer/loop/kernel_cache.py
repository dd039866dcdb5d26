"""Compiled kernels that jobs of a node share: taken before the first step, archived after it.

torch loads what lies in its caches as code. An attempt therefore compiles in a folder of its own,
in its run directory. Only a job that brings no code gets the node's archives, and only the worker
writes among them: it copies the archive that this module leaves in the run directory.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

import trainer
from trainer.distributed import Ranks
from trainer.parallel.compile import waiting_for_compilers
from trainer.run import TrainerRun
from trainyard.run.atomic import replacing
from trainyard.run.kernel_archive import LARGEST_ARCHIVE, archive_name

logger = logging.getLogger("trainer")

OF_TRAINING = {
    *("seq_len", "micro_batch_size", "param_dtype", "weight_dtype", "reduce_dtype"),
    "deterministic",
}
"""Fields of `training` that shape what is compiled."""
SECTIONS = ("model", "parallelism", "activation_checkpoint", "compile", "quantization")
"""Sections of the spec that do."""
CPU_INFO = Path("/proc/cpuinfo")
OF_CPU = ("vendor_id", "cpu family", "model", "flags", "CPU implementer", "CPU part", "Features")
"""Its fields for which a compiler chooses instructions, on x86 and on ARM."""


@contextmanager
def first_compilation(run: TrainerRun, ranks: Ranks, mesh: DeviceMesh) -> Iterator[None]:
    """Give the block, the first step of this process, the kernels of earlier attempts on this node.

    A collective. Each rank waits for the kernels of its node, and afterwards for the compilers of
    all ranks. A cache that is damaged, or that the disk does not take, only costs the time of
    compilation.
    """
    cache = None
    if run.attempt.kernel_cache is not None and _compiles(run, ranks):
        cache = KernelCache(run, Path(run.attempt.kernel_cache))
        _on_each_node(cache.fetch, ranks)
    with waiting_for_compilers(run.spec, mesh, ranks.cpu_group):
        yield
    if cache is not None:
        dist.barrier(group=ranks.cpu_group)  # all kernels of the node are written
        if _leads_node():
            cache.archive()


def _compiles(run: TrainerRun, ranks: Ranks) -> bool:
    # On a GPU eager code has Triton kernels too, such as those of the loss.
    return run.spec.compile.enabled is True or ranks.device.type == "cuda"


def _leads_node() -> bool:
    return os.environ.get("LOCAL_RANK", "0") == "0"


def _on_each_node(action: Callable[[], None], ranks: Ranks) -> None:
    if _leads_node():
        action()
    dist.barrier(group=ranks.cpu_group)


class KernelCache:
    """The compile caches of one attempt on one node."""

    def __init__(self, run: TrainerRun, store: Path) -> None:
        """Read and write nothing yet.

        Args:
            run: the attempt; its launcher has directed the caches of inductor and Triton to
                `kernels` in its run directory.
            store: the node's archives, by key; this process only reads them.
        """
        self._kernels = Path(run.directory.kernels)
        name = archive_name(kernel_key(run))
        self._stored = store / name
        self._archive = Path(run.directory.kernel_archives) / name
        self._fetched: frozenset[str] = frozenset()

    def fetch(self) -> None:
        """Unpack the node's archive into the attempt's own caches, if there is one."""
        try:
            with zipfile.ZipFile(self._stored) as archive:
                files = archive.infolist()
                if sum(file.file_size for file in files) > LARGEST_ARCHIVE:
                    raise zipfile.BadZipFile("larger than any that is written")
                archive.extractall(self._kernels)  # compares the CRC-32 of each file
        except FileNotFoundError:
            return
        except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile) as error:
            logger.warning("compiled kernels of earlier jobs cannot be used: %s", error)
            shutil.rmtree(self._kernels, ignore_errors=True)
            return
        self._fetched = frozenset(file.filename for file in files)

    def archive(self) -> None:
        """Leave the compiled kernels for the worker; an empty file if it has all of them."""
        files = sorted(_files(self._kernels))
        if not files:
            return
        if sum((self._kernels / name).stat().st_size for name in files) > LARGEST_ARCHIVE:
            logger.info("compiled kernels exceed %d bytes and are not shared", LARGEST_ARCHIVE)
            return
        try:
            self._archive.parent.mkdir(exist_ok=True)
            with replacing(self._archive, durable=False) as file:
                os.fchmod(file.fileno(), 0o644)  # the worker may be another user
                if frozenset(files) != self._fetched:
                    with zipfile.ZipFile(file, "w") as archive:
                        for name in files:
                            archive.write(self._kernels / name, name)
        except OSError as error:
            logger.warning("compiled kernels are not shared: %s", error)


def _files(folder: Path) -> Iterator[str]:
    """Return the finished files of a cache, relative to it; locks and drafts are left out."""
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "locks" and not _is_draft(name)]
        for name in names:
            if not _is_draft(name):
                yield str((Path(parent) / name).relative_to(folder))


def _is_draft(name: str) -> bool:
    return name.startswith((".", "tmp")) or name.endswith((".tmp", ".lock"))


def kernel_key(run: TrainerRun) -> str:
    """Return the SHA-256 of what shapes an attempt's kernels, as hexadecimal digits.

    It limits what one archive holds: torch compares graph, versions and GPU of each entry. It does
    not compare the CPU, for whose instructions it compiles, and a data folder may move to another
    machine, or lie where several reach it.
    """
    spec = run.spec
    facts = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "code": _code(),
        "cpu": _cpu(),
        "threads": torch.get_num_threads(),
        "layout": run.attempt.layout.model_dump(mode="json"),
        "document_masks": spec.data.document_masks,
        "training": spec.training.model_dump(mode="json", include=OF_TRAINING),
        **{name: getattr(spec, name).model_dump(mode="json") for name in SECTIONS},
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _cpu() -> list[str]:
    """Return the fields of each kind of CPU here; none where the system does not list them."""
    try:
        lines = CPU_INFO.read_text().splitlines()
    except OSError:
        return []
    return sorted({line for line in lines if line.partition(":")[0].strip() in OF_CPU})


def _code() -> str:
    """Return the digest of the trainer's own code."""
    digest, folder = hashlib.sha256(), Path(trainer.__file__).parent
    for path in sorted(folder.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder)}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()
