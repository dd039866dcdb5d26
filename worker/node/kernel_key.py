"""Names the archive of an attempt's compiled kernels: the node does, so that no rank chooses it."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import platform
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout

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


def kernel_key(spec: JobSpec, layout: Layout, *, threads: str) -> str:
    """Return the SHA-256 of what shapes an attempt's kernels, as hexadecimal digits.

    It limits what one archive holds: torch compares graph, versions and GPU of each entry. It does
    not compare the CPU, for whose instructions it compiles, and a data folder may move to another
    machine, or lie where several reach it.

    Args:
        spec: the effective spec.
        layout: layout of the attempt.
        threads: `OMP_NUM_THREADS` of its ranks.
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
    """Return the fields of each kind of CPU here; none where the system does not list them."""
    try:
        lines = CPU_INFO.read_text().splitlines()
    except OSError:
        return []
    return sorted({line for line in lines if line.partition(":")[0].strip() in OF_CPU})


@lru_cache(maxsize=1)
def _code() -> str:
    """Return the digest of the trainer's own code."""
    found = importlib.util.find_spec("trainer")  # imports nothing of it
    assert found is not None, "its package is installed"
    assert found.origin is not None
    digest, folder = hashlib.sha256(), Path(found.origin).parent
    for path in sorted(folder.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder)}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()
