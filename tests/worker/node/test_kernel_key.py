"""The name of a kernel archive depends on the compiled code and the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout
from worker.node import kernel_store
from worker.node.kernel_store import kernel_key

SPEC = JobSpec()


def key(spec: JobSpec = SPEC, *, threads: str = "1") -> str:
    return kernel_key(spec, Layout(), threads=threads)


def test_another_cpu_has_other_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch compiles for the instructions of this CPU; another may lack them."""
    info = tmp_path / "cpuinfo"
    monkeypatch.setattr(kernel_store, "CPU_INFO", info)
    core = "processor : {}\nmodel : 2\ncpu MHz : {}\nflags : fpu {}\n\n"
    info.write_text(core.format(0, 2596, "avx512f") + core.format(1, 2597, "avx512f"))
    own = key()
    info.write_text(core.format(0, 3000, "avx512f"))
    assert key() == own
    info.write_text(core.format(0, 2596, "avx2"))
    assert key() != own


def test_it_follows_what_is_compiled() -> None:
    def changed(section: str, **fields: object) -> str:
        return key(
            SPEC.model_copy(
                update={section: getattr(SPEC, section).model_copy(update=fields)},
            )
        )

    own = key()
    same = [changed("training", steps=7, seed=3), changed("optimizer", lr=0.5)]
    other = [
        changed("training", seq_len=64),
        changed("training", micro_batch_size=2),
        changed("model", n_layers=3),
        changed("compile", backend="eager"),
        changed("data", document_masks=True),
        key(threads="2"),
        kernel_key(SPEC, Layout(dp_shard=2), threads="1"),
    ]
    assert set(same) == {own}
    assert len({own, *other}) == 8
