"""The order of the data is the same for any ranks, any micro-batches and any stop.

The reference is computed from the file itself; it shares only the permutation with the reader.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer.data.helpers import SEQ_LEN, open_text, text_root
from tests.trainer.data.inputs import (
    DOCUMENTS,
    HUGGINGFACE_TOKENIZER,
    WRITERS,
    write_tokenizer,
)
from trainer.data.batches import MicroBatch, micro_batches
from trainer.data.dataset import Dataset, open_dataset
from trainer.data.digest import in_global_order, sequence_hash, step_digest
from trainer.data.tokenizer import BOS, EOS
from trainyard.spec.job import parse_job_spec
from trainyard.training.batch_partition import BatchPartition
from trainyard.training.permutation import Permutation

SEED = 11
MAX_RANKS = 8


@dataclass(frozen=True)
class Step:
    """The data of all ranks in one step, in global order."""

    positions: list[int]
    tokens: list[tuple[int, ...]]
    labels: list[tuple[int, ...]]
    digest: str


def run_step(dataset: Dataset, position: int, partition: BatchPartition) -> Step:
    """Let every rank read its share, and join the shares like the ranks."""
    by_rank = [
        micro_batches(dataset, position=position, partition=partition, dp_rank=r)
        for r in range(partition.dp)
    ]
    assert {len(batches) for batches in by_rank} == {partition.rounds}
    # Micro-batch i is round i // dp of rank i mod dp: the partition rule, written a second time.
    dealt = [batches[i] for i in range(partition.rounds) for batches in by_rank]
    real = [batch for batch in dealt if batch.weight]
    assert dealt[: len(real)] == real
    return Step(
        positions=[int(p) for b in real for p in b.positions],
        tokens=[tuple(row) for b in real for row in b.tokens.tolist()],
        labels=[tuple(row) for b in real for row in b.labels.tolist()],
        digest=digest_of(partition, by_rank),
    )


def digest_of(partition: BatchPartition, by_rank: Sequence[Sequence[MicroBatch]]) -> str:
    hashes = [
        [
            sequence_hash(int(position), tokens_S)
            for batch in batches
            if batch.weight
            for position, tokens_S in zip(batch.positions, batch.tokens, strict=True)
        ]
        for batches in by_rank
    ]
    return step_digest(in_global_order(partition, hashes))


def run(dataset: Dataset, steps: range, partition: BatchPartition) -> list[Step]:
    return [run_step(dataset, step * partition.global_batch_size, partition) for step in steps]


def reference(root: Path, sequences: int, *, steps: int, global_batch: int) -> list[Step]:
    """The steps of an uninterrupted run, from the bytes of the file."""
    stream = [BOS, *(root / "text.txt").read_bytes(), EOS]
    expected = []
    for step in range(steps):
        positions = list(range(step * global_batch, (step + 1) * global_batch))
        starts = [
            Permutation(sequences, SEED, p // sequences)(p % sequences) * SEQ_LEN for p in positions
        ]
        tokens = [tuple(stream[s : s + SEQ_LEN]) for s in starts]
        hashes = [sequence_hash(p, np.array(t)) for p, t in zip(positions, tokens, strict=True)]
        labels = [tuple(stream[s + 1 : s + 1 + SEQ_LEN]) for s in starts]
        expected.append(Step(positions, tokens, labels, step_digest(hashes)))
    return expected


@pytest.mark.parametrize("global_batch", [8, 9, 11, 13, 15, 16, 31])
@pytest.mark.parametrize("sequences", [1, 7, 29, 64])
def test_every_pair_of_world_sizes_reads_the_same_sequences(
    tmp_path: Path, sequences: int, global_batch: int
) -> None:
    """Stopped on N ranks and resumed on M, all N, M <= 8, with each micro-batch size legal on both.

    Epochs of 1 and 7 sequences end inside every batch; 29 and 64 end inside some, between others.
    """
    root = text_root(tmp_path, sequences=sequences)
    steps, stop = 6, 3
    expected = reference(root, sequences, steps=steps, global_batch=global_batch)
    for dp in range(1, MAX_RANKS + 1):
        # A resume opens the dataset again, like another process on another node.
        for span in (range(stop), range(stop, steps)):
            dataset = open_text(root, seed=SEED)
            read = [
                run(dataset, span, BatchPartition(global_batch, micro_batch, dp))
                for micro_batch in range(1, global_batch // dp + 1)
                if -(-global_batch // micro_batch) >= dp
            ]
            assert read
            for half in read:  # each first half continues in each second one
                assert half == expected[span.start : span.stop]


@settings(max_examples=60)
@given(data=st.data())
def test_any_chain_of_resumes_reads_the_same_sequences(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Any number of stops, each with other ranks and another micro-batch size."""
    sequences = data.draw(st.integers(1, 40), label="sequences")
    global_batch = data.draw(
        st.integers(1, 20).map(lambda half: 2 * half + 1), label="global batch"
    )
    root = text_root(tmp_path_factory.mktemp("corpus"), sequences=sequences)
    steps = 0
    seen: list[Step] = []
    for _ in range(data.draw(st.integers(2, 4), label="attempts")):
        micro_batch = data.draw(st.integers(1, global_batch), label="micro-batch")
        most = min(MAX_RANKS, -(-global_batch // micro_batch))
        partition = BatchPartition(
            global_batch, micro_batch, data.draw(st.integers(1, most), label="dp")
        )
        length = data.draw(st.integers(1, 4), label="steps")
        seen += run(open_text(root, seed=SEED), range(steps, steps + length), partition)
        steps += length
    assert seen == reference(root, sequences, steps=steps, global_batch=global_batch)


@pytest.mark.parametrize("global_batch", [9, 16])
def test_an_epoch_trains_every_token_but_the_first(tmp_path: Path, global_batch: int) -> None:
    sequences = 9 * 16
    root = text_root(tmp_path, sequences=sequences)
    run_of_epoch = run(
        open_text(root), range(sequences // global_batch), BatchPartition(global_batch, 2, 3)
    )
    labels = np.concatenate([np.ravel(step.labels) for step in run_of_epoch])
    stream = [BOS, *(root / "text.txt").read_bytes(), EOS]
    assert np.array_equal(np.bincount(labels), np.bincount(stream[1:]))


# ---- every kind of input, tokenizer and switch ---------------------------------------------------


@dataclass(frozen=True)
class Stream:
    """All documents one after another, computed without the reader."""

    tokens: list[int]
    owners: list[int]
    """Document of each token."""

    @classmethod
    def of(cls, encode: Callable[[str], list[int]]) -> Stream:
        documents = [encode(text) for text in DOCUMENTS]
        return cls(
            tokens=[token for document in documents for token in document],
            owners=[number for number, document in enumerate(documents) for _ in document],
        )

    def window_at(self, position: int, fraction: float) -> int:
        """Return the window at a position."""
        windows = (len(self.tokens) - 1) // SEQ_LEN
        training = windows - int(windows * fraction)
        epoch, index = divmod(position, training)
        entry = Permutation(training, SEED, epoch)(index)
        return Permutation(windows, SEED, -1)(entry) if fraction else entry

    def step(self, step: int, global_batch: int, fraction: float) -> Step:
        positions = list(range(step * global_batch, (step + 1) * global_batch))
        starts = [self.window_at(p, fraction) * SEQ_LEN for p in positions]
        tokens = [tuple(self.tokens[s : s + SEQ_LEN]) for s in starts]
        labels = [tuple(self.tokens[s + 1 : s + 1 + SEQ_LEN]) for s in starts]
        hashes = [sequence_hash(p, np.array(t)) for p, t in zip(positions, tokens, strict=True)]
        return Step(positions, tokens, labels, step_digest(hashes))

    def segments(self, position: int, fraction: float) -> list[int]:
        first = self.window_at(position, fraction) * SEQ_LEN
        owners = self.owners[first : first + SEQ_LEN]
        return [owner - owners[0] for owner in owners]


def byte_tokens(text: str) -> list[int]:
    return [BOS, *text.encode(), EOS]


CASES = [
    *((kind, {}) for kind in WRITERS),
    ("text", {"document_masks": True}),
    ("jsonl", {"validation_fraction": 0.2}),
    ("text", HUGGINGFACE_TOKENIZER),
    ("parquet", {**HUGGINGFACE_TOKENIZER, "document_masks": True, "validation_fraction": 0.3}),
]


@pytest.mark.parametrize(("kind", "data"), CASES)
def test_every_input_is_read_alike_on_any_world_size(
    tmp_path: Path, kind: str, data: dict[str, Any]
) -> None:
    """Stopped after each step and resumed on another number of ranks, with another micro-batch."""
    root = tmp_path / "data"
    root.mkdir()
    written = WRITERS[kind](root, DOCUMENTS)
    encode = byte_tokens
    if data.get("tokenizer") == "huggingface":
        library = write_tokenizer(tmp_path / "models/small")
        encode = lambda text: [0, *library.encode(text, add_special_tokens=False).ids, 1]  # noqa: E731
    stream = Stream.of(encode)
    fraction = float(data.get("validation_fraction", 0.0))
    global_batch = 13
    digests = set()
    for step in range(8):
        dp = step + 1
        dataset = open_dataset(
            parse_job_spec(
                {
                    "data": {**written, **data},
                    "model": {"vocab_size": 320},
                    "training": {"seq_len": SEQ_LEN, "seed": SEED},
                }
            ),
            roots={"data": str(root), "models": str(tmp_path / "models")},
            # Built again each time, like on another node.
            cache_dir=tmp_path / f"cache-{step}",
            on_progress=lambda: None,
            processes=1,
        )
        digests.add(dataset.digest)
        for micro_batch in {1, global_batch // dp}:
            partition = BatchPartition(global_batch, micro_batch, dp)
            expected = stream.step(step, global_batch, fraction)
            assert run_step(dataset, step * global_batch, partition) == expected
            check_segments(
                dataset, step * global_batch, partition=partition, stream=stream, fraction=fraction
            )
    assert len(digests) == 1


def check_segments(
    dataset: Dataset, position: int, *, partition: BatchPartition, stream: Stream, fraction: float
) -> None:
    for rank in range(partition.dp):
        for batch in micro_batches(dataset, position=position, partition=partition, dp_rank=rank):
            if not dataset.document_masks:
                assert batch.segments is None
            elif batch.weight:
                assert batch.segments is not None
                assert batch.segments.tolist() == [
                    stream.segments(int(p), fraction) for p in batch.positions
                ]


# ---- the digest sees what is wrong --------------------------------------------------------------


def replace(batch: MicroBatch, row: int, tokens_S: np.ndarray) -> MicroBatch:
    tokens = batch.tokens.copy()
    tokens[row] = tokens_S
    return MicroBatch(tokens, batch.labels, batch.positions, batch.weight)


@given(data=st.data())
@settings(max_examples=60)
def test_one_wrong_sequence_is_seen(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    root = text_root(tmp_path_factory.mktemp("corpus"), sequences=50)
    dataset = open_text(root, seed=SEED)
    partition = BatchPartition(15, 2, data.draw(st.integers(1, 8), label="dp"))
    by_rank = [
        micro_batches(dataset, position=30, partition=partition, dp_rank=r)
        for r in range(partition.dp)
    ]
    right = digest_of(partition, by_rank)
    assert right == reference(root, 50, steps=3, global_batch=15)[2].digest

    rank = data.draw(st.integers(0, partition.dp - 1), label="rank")
    worked = [i for i, batch in enumerate(by_rank[rank]) if batch.weight]
    which = data.draw(st.sampled_from(worked), label="round")
    batch = by_rank[rank][which]
    row = data.draw(st.integers(0, batch.positions.size - 1), label="row")
    wrong = data.draw(st.integers(0, 49), label="sequence in its place")
    by_rank[rank][which] = replace(batch, row, dataset.windows(np.array([wrong]))[0, :-1])
    same = dataset.order(np.array([wrong]))[0] == dataset.order(batch.positions[row : row + 1])[0]
    assert (digest_of(partition, by_rank) == right) == same


def test_two_exchanged_sequences_are_seen(tmp_path: Path) -> None:
    dataset = open_text(text_root(tmp_path, sequences=50))
    partition = BatchPartition(6, 3, 2)
    by_rank = [micro_batches(dataset, position=0, partition=partition, dp_rank=r) for r in range(2)]
    right = digest_of(partition, by_rank)
    one, other = by_rank[0][0], by_rank[1][0]
    exchanged = [[replace(one, 0, other.tokens[0])], [replace(other, 0, one.tokens[0])]]
    assert digest_of(partition, exchanged) != right


def test_a_run_that_starts_one_sequence_off_is_seen(tmp_path: Path) -> None:
    dataset = open_text(text_root(tmp_path, sequences=50))
    partition = BatchPartition(6, 3, 2)
    assert run_step(dataset, 7, partition).digest != run_step(dataset, 6, partition).digest
