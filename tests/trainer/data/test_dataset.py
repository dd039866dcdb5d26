"""The dataset: windows over all tokens, epochs without end, a digest that identifies it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.trainer.data.helpers import open_text, text_root, text_spec, write_text
from trainer.data.dataset import Dataset, open_dataset
from trainer.data.tokenizer import BOS, EOS
from trainer.errors import DataError
from trainyard.protocol.resume_rules import keeps_order
from trainyard.spec.job import parse_job_spec


def epoch_of(dataset: Dataset, epoch: int) -> NDArray[np.int64]:
    first = epoch * dataset.n_sequences
    return dataset.windows(np.arange(first, first + dataset.n_sequences))


def test_windows_hold_every_token_and_share_one(tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir()
    (root / "a").write_bytes(b"first document")
    (root / "b").write_bytes(b"second")
    stream = [BOS, *b"first document", EOS, BOS, *b"second", EOS]  # 24 tokens
    dataset = open_text(root, seq_len=5)
    assert dataset.n_sequences == 4
    expected = {tuple(stream[start : start + 6]) for start in (0, 5, 10, 15)}
    assert {tuple(window) for window in epoch_of(dataset, 0)} == expected


@pytest.mark.parametrize(("tokens", "windows"), [(9, 1), (16, 1), (17, 2), (24, 2), (25, 3)])
def test_a_window_more_needs_seq_len_more_tokens(tmp_path: Path, tokens: int, windows: int) -> None:
    root = tmp_path / "data"
    root.mkdir()
    (root / "a").write_bytes(b"x" * (tokens - 2))
    assert open_text(root, seq_len=8).n_sequences == windows


def test_each_epoch_holds_every_window_once_in_another_order(tmp_path: Path) -> None:
    dataset = open_text(text_root(tmp_path, sequences=37))
    epochs = [epoch_of(dataset, epoch) for epoch in range(4)]
    assert len({tuple(map(tuple, np.sort(epoch, axis=0))) for epoch in epochs}) == 1
    assert len({tuple(map(tuple, epoch)) for epoch in epochs}) == 4


def test_seeds_give_other_orders_of_the_same_dataset(tmp_path: Path) -> None:
    root = text_root(tmp_path, sequences=37)
    one, other = open_text(root, seed=1), open_text(root, seed=2)
    assert one.digest == other.digest
    assert not np.array_equal(epoch_of(one, 0), epoch_of(other, 0))


def test_one_window_is_what_many_are(tmp_path: Path) -> None:
    dataset = open_text(text_root(tmp_path, sequences=5))
    positions = np.array([0, 4, 5, 23, 1_000_000_007])
    windows = dataset.windows(positions)
    assert windows.dtype == np.int64
    for position, window in zip(positions, windows, strict=True):
        assert np.array_equal(dataset.windows(np.array([position]))[0], window)


@pytest.mark.parametrize("seq_len", [4, 9])
def test_segments_number_the_documents_of_a_window(tmp_path: Path, seq_len: int) -> None:
    root = tmp_path / "data"
    root.mkdir()
    for name, text in (("a", b"abc"), ("b", b"d"), ("c", b"efghij"), ("d", b"k")):
        (root / name).write_bytes(text)
    dataset = open_text(root, seq_len=seq_len)
    owner = np.repeat([0, 1, 2, 3], [5, 3, 8, 3])  # BOS, text, EOS of each
    positions = np.arange(2 * dataset.n_sequences)
    segments = dataset.segments(positions)
    assert segments.dtype == np.int32
    assert segments.shape == (positions.size, seq_len)
    for row, window in enumerate(dataset.order(positions)):
        owners = owner[window * seq_len : (window + 1) * seq_len]
        assert segments[row].tolist() == np.unique(owners, return_inverse=True)[1].tolist()
    assert segments.max() == (2 if seq_len == 9 else 1)


def test_document_masks_are_part_of_the_digest(tmp_path: Path) -> None:
    root = text_root(tmp_path, sequences=10)
    assert open_text(root).digest != open_text(root, document_masks=True).digest


def test_max_tokens_cut_the_input_in_the_middle_of_a_document(tmp_path: Path) -> None:
    root = text_root(tmp_path, sequences=10)
    full, cut = open_text(root), open_text(root, max_tokens=8 * 4 + 1)
    assert cut.n_sequences == 4
    windows = {tuple(window) for window in epoch_of(full, 0)}
    assert {tuple(window) for window in epoch_of(cut, 0)} < windows
    assert cut.digest != full.digest


def test_the_digest_is_the_same_wherever_the_files_lie(tmp_path: Path) -> None:
    digests: set[str] = set()
    for node in ("node-1", "node-2"):
        (tmp_path / node).mkdir()
        root = text_root(tmp_path / node, sequences=10)
        os.utime(root / "text.txt", (1, len(digests)))
        digests.add(open_text(root).digest)
    assert len(digests) == 1


def change_a_byte(root: Path) -> None:
    content = bytearray((root / "text.txt").read_bytes())
    content[40] ^= 1
    (root / "text.txt").write_bytes(content)


def add_a_document(root: Path) -> None:
    (root / "z.txt").write_text("z")


def split_a_document(root: Path) -> None:
    content = (root / "text.txt").read_bytes()
    (root / "text.txt").write_bytes(content[:30])
    (root / "text2.txt").write_bytes(content[30:])


@pytest.mark.parametrize("change", [change_a_byte, add_a_document, split_a_document])
def test_the_digest_notices_other_content(tmp_path: Path, change: Callable[[Path], None]) -> None:
    root = text_root(tmp_path, sequences=10)
    before = open_text(root).digest
    change(root)
    assert open_text(root).digest != before


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("data.document_masks", {"document_masks": True}),
        ("data.prefetch_batches", {"prefetch_batches": 5}),
        ("data.validation_fraction", {"validation_fraction": 0.25}),
        ("data.max_tokens", {"max_tokens": 100}),
        ("data.path", {"place": "data:other"}),
        ("training.seq_len", {"seq_len": 4}),
    ],
)
def test_the_plan_of_a_fork_and_the_trainer_agree_on_what_keeps_the_order(
    tmp_path: Path, field: str, change: dict[str, Any]
) -> None:
    root = text_root(tmp_path, sequences=30)
    (root / "other").mkdir()
    (root / "other" / "text.txt").write_text("something else altogether" * 20)
    (root / "text").mkdir()
    (root / "text.txt").rename(root / "text" / "text.txt")
    before = open_text(root, place="data:text")
    after = open_text(root, **{"place": "data:text", **change})
    assert (before.digest in after.same_order) == keeps_order(field)
    assert (after.digest in before.same_order) == keeps_order(field)


def test_the_digest_notices_another_seq_len(tmp_path: Path) -> None:
    root = text_root(tmp_path, sequences=10)
    assert open_text(root, seq_len=8).digest != open_text(root, seq_len=4).digest
    assert len(list((tmp_path / "cache").glob("*.tokens"))) == 1  # but they share the tokens


def test_a_short_corpus_is_refused_and_nothing_is_built(tmp_path: Path) -> None:
    root = text_root(tmp_path, sequences=1)
    with pytest.raises(DataError, match="holds 9 tokens in 1 documents"):
        open_text(root, seq_len=9)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("happens", [add_a_document, change_a_byte])
def test_an_input_that_changes_before_it_is_read_is_refused(
    tmp_path: Path, happens: Callable[[Path], None]
) -> None:
    root = text_root(tmp_path, sequences=10)
    todo = [happens]
    with pytest.raises(DataError, match="start again when the input is complete"):
        open_dataset(
            text_spec(),
            roots={"data": str(root)},
            cache_dir=tmp_path / "cache",
            on_progress=lambda: todo.pop()(root) if todo else None,
        )
    assert not list((tmp_path / "cache").glob("*.json"))
    assert open_text(root).n_sequences >= 10


def test_the_standard_library_becomes_a_dataset(tmp_path: Path) -> None:
    spec = parse_job_spec({"data": {"source": "corpus", "max_tokens": 100_000}})
    dataset = open_dataset(spec, roots={}, cache_dir=tmp_path, on_progress=lambda: None)
    assert dataset.n_sequences == (100_000 - 1) // 128
    assert b"import" in epoch_of(dataset, 0).astype(np.uint8).tobytes()


def test_progress_is_reported_at_least_once(tmp_path: Path) -> None:
    calls: list[int] = []
    open_dataset(
        text_spec(),
        roots={"data": str(text_root(tmp_path, sequences=3))},
        cache_dir=tmp_path / "cache",
        on_progress=lambda: calls.append(1),
    )
    assert calls


def test_data_is_read_without_torch() -> None:
    code = "import sys, trainer.data.batches, trainer.data.digest; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_corpus_larger_than_the_memory_is_streamed(tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir()
    with (root / "big.txt").open("wb") as file:
        for letter in range(100):
            file.write(bytes([97 + letter % 26]) * 1_000_000)
    write_text(root, sequences=3)
    # A limit on anonymous memory; the mapped cache is the kernel's to drop and does not count.
    code = f"""
import resource
from pathlib import Path
from tests.trainer.data.helpers import open_text
used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_DATA, (used + 32 * 2**20, -1))
print(open_text(Path({str(root)!r})).n_sequences)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(done.stdout) > 12_000_000
