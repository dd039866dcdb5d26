"""Images, histograms and files that a script logs, as records and content of its run directory."""

from __future__ import annotations

import errno
import io
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from trainyard.protocol.record_parser import parse_record
from trainyard.run.artifacts import artifact_writer
from trainyard.run.artifacts.array_copy import copy_array
from trainyard.run.artifacts.artifact_records import ArtifactRecord, HistogramRecord, check_record
from trainyard.run.artifacts.histogram_bins import fold
from trainyard.run.session import Run
from trainyard.run.session.process_place import ProcessPlace

ALONE = ProcessPlace()
PIXELS = np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3)


def records(folder: Path, rank: int = 0) -> list[ArtifactRecord]:
    lines = (folder / "artifacts" / f"rank-{rank}.jsonl").read_bytes().splitlines()
    found = [parse_record(ArtifactRecord, line) for line in lines]
    for record in found:
        check_record(record)
    return found


def content(folder: Path, record: ArtifactRecord) -> bytes:
    assert record.file is not None
    return (folder / "artifacts" / record.file).read_bytes()


def encoded(form: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(PIXELS).save(file, form)
    return file.getvalue()


@pytest.mark.parametrize(
    ("image", "mode"),
    [
        (PIXELS, "RGB"),
        (PIXELS[:, :, 0], "L"),
        (PIXELS[:, :, :1], "L"),
        (PIXELS[::-1, ::2], "RGB"),
        (np.dstack([PIXELS, PIXELS[:, :, :1]]), "RGBA"),
        (torch.from_numpy(PIXELS), "RGB"),
        (torch.from_numpy(PIXELS).permute(1, 0, 2), "RGB"),
    ],
)
def test_pixels_come_back_from_their_png(tmp_path: Path, image: Any, mode: str) -> None:
    run = Run(tmp_path, ALONE)
    run.log_image("samples/first", image, step=3, caption="a word")
    run.close()
    (record,) = records(tmp_path)
    assert (record.kind, record.name, record.step) == ("image", "samples/first", 3)
    assert record.caption == "a word"
    read = Image.open(io.BytesIO(content(tmp_path, record)))
    assert read.mode == mode
    expected = np.asarray(image)
    if mode == "L":
        expected = expected.reshape(expected.shape[:2])
    assert np.array_equal(np.asarray(read), expected)


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "1", "LA", "CMYK"])
def test_an_image_of_pil_is_taken_in_every_mode(tmp_path: Path, mode: str) -> None:
    given = Image.fromarray(PIXELS).convert(mode)
    run = Run(tmp_path, ALONE)
    run.log_image("x", given)
    run.close()
    read = Image.open(io.BytesIO(content(tmp_path, records(tmp_path)[0])))
    kept = mode if mode in ("L", "RGB", "RGBA") else "RGBA" if mode == "LA" else "RGB"
    assert (read.mode, read.size) == (kept, (7, 5))
    assert read.tobytes() == given.convert(kept).tobytes()


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP"])
def test_files_and_their_bytes_are_kept_as_they_are(tmp_path: Path, form: str) -> None:
    path = tmp_path / "image"
    path.write_bytes(encoded(form))
    run = Run(tmp_path, ALONE)
    for image in (path, str(path), encoded(form), bytearray(encoded(form))):
        run.log_image("x", image)
    run.close()
    assert {content(tmp_path, each) for each in records(tmp_path)} == {encoded(form)}


@pytest.mark.parametrize(
    ("image", "says"),
    [
        (b"GIF89a", "PNG, JPEG or WebP"),
        (b"<svg xmlns='x'/>", "PNG, JPEG or WebP"),
        (PIXELS.astype(np.float32), "uint8 is legal"),
        (PIXELS.reshape(-1), "height x width"),
        (PIXELS[:, :, :2], "1, 3 or 4"),
        (PIXELS[:0], "legal are 1 to"),
        (np.broadcast_to(PIXELS[:1, :1], (9000, 9000, 3)), "67,108,864"),
        (object(), "real numbers"),
    ],
)
def test_what_is_no_image_is_refused_in_a_job_and_without_one(
    tmp_path: Path, image: Any, says: str
) -> None:
    for run in (Run(tmp_path, ALONE), Run(None, ALONE)):
        with pytest.raises((ValueError, TypeError), match=says):
            run.log_image("x", image)
        run.close()


@pytest.mark.parametrize("name", ["", "/a", "a/", "a//b", "../a", "a/..", "a\nb", "a\\b", " a", 3])
def test_names_that_are_no_relative_paths_are_refused(name: Any) -> None:
    with pytest.raises(ValueError, match=r"name=.*legal are"):
        Run(None, ALONE).log_histogram(name, [1.0])


def test_a_histogram_counts_finite_values_and_the_others_apart(tmp_path: Path) -> None:
    values = np.array([0, 1, 1, 2, 4, math.nan, math.inf, math.inf, -math.inf], dtype=np.float32)
    run = Run(tmp_path, ALONE)
    for given in (
        values,
        torch.from_numpy(values),
        values.tolist(),
        [list(values[:4]), values[4:]],
    ):
        run.log_histogram("weights", given, step=1, bins=4)
    run.log_histogram("bf16", torch.from_numpy(values).bfloat16(), bins=4)
    run.log_histogram("half", values.astype(np.float16), bins=4)
    run.close()
    found = records(tmp_path)
    expected = HistogramRecord(
        edges=(0.0, 1.0, 2.0, 3.0, 4.0),
        counts=(1, 2, 1, 1),
        nan=1,
        positive_infinity=2,
        negative_infinity=1,
    )
    assert [record.histogram for record in found] == [expected] * 6
    assert found[0].kind == "histogram"


@pytest.mark.parametrize(
    "values",
    [
        [math.nan],
        [],
        [7.0, 7.0],
        [1e300, -1.7e308, 1.7e308],
        [1.0, 1.0 + 2**-52],
        [True, False, True],
        list(range(-50, 51)),
        np.random.default_rng(1).normal(size=5000).tolist(),
        [-1e-320, 0.0, 5e-324],
    ],
)
def test_python_and_numpy_fold_alike(values: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    copied = copy_array(values, what="values", most=10**7)
    by_numpy = fold(copied, bins=64)
    monkeypatch.delitem(sys.modules, "numpy")
    by_hand = fold(copied, bins=64)
    assert by_hand.edges == by_numpy.edges
    assert by_hand.counts == by_numpy.counts
    assert sum(by_hand.counts) + by_hand.nan == len(values)
    record = ArtifactRecord(time=0.0, kind="histogram", name="x", histogram=by_hand)
    check_record(record)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"values": [1.0], "bins": 0}, "bins=0"),
        ({"values": [1.0], "bins": 513}, "1 to 512"),
        ({"values": [1.0], "step": -1}, "step=-1"),
        ({"values": "text"}, "real numbers"),
        ({"values": np.array([1j])}, "real numbers"),
        ({"values": np.zeros(10_000_001, dtype=np.uint8)}, "10,000,000"),
    ],
)
def test_what_is_no_histogram_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises((ValueError, TypeError), match=says):
        Run(None, ALONE).log_histogram("x", **given)


def test_a_file_is_copied_as_it_is_at_the_call(tmp_path: Path) -> None:
    source = tmp_path / "predictions.csv"
    source.write_text("1,2\n")
    run = Run(tmp_path, ALONE)
    run.log_artifact(source, kind="predictions", step=7)
    source.write_text("overwritten")
    run.log_artifact(source, name="other.csv")
    run.close()
    first, second = records(tmp_path)
    assert (first.name, first.kind, first.step) == ("predictions.csv", "predictions", 7)
    assert content(tmp_path, first) == b"1,2\n"
    assert (second.name, second.kind, content(tmp_path, second)) == (
        "other.csv",
        "file",
        b"overwritten",
    )


def test_the_files_of_a_folder_keep_their_paths_and_links_are_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    (folder / "in").mkdir(parents=True)
    (folder / "a.txt").write_text("a")
    (folder / "in" / "b.txt").write_text("b")
    (folder / "leads").symlink_to("/etc/passwd")
    (folder / "up").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe")
    run = Run(tmp_path, ALONE)
    run.log_artifact(folder, name="model")
    run.close()
    assert [(each.name, content(tmp_path, each)) for each in records(tmp_path)] == [
        ("model/a.txt", b"a"),
        ("model/in/b.txt", b"b"),
    ]


def test_files_that_are_absent_too_large_or_too_many_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path, ALONE)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        run.log_artifact(tmp_path / "absent")
    hole = tmp_path / "hole"
    with hole.open("wb") as file:
        file.truncate(256 * 1024 * 1024 + 1)
    with pytest.raises(ValueError, match="268,435,456 at most"):
        run.log_artifact(hole)
    with pytest.raises(ValueError, match="kind='image'"):
        run.log_artifact(hole, kind="image")
    with pytest.raises(ValueError, match="kind='a b'"):
        run.log_artifact(hole, kind="a b")
    many = tmp_path / "many"
    many.mkdir()
    for number in range(1001):
        (many / str(number)).touch()
    with pytest.raises(ValueError, match="more than 1,000 files"):
        run.log_artifact(many)
    run.close()
    assert [path.name for path in (tmp_path / "artifacts").iterdir()] == []


def test_a_disk_without_room_drops_artifacts_and_records_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 0
    monkeypatch.setattr(artifact_writer, "reserve", lambda _: (free, 1000))
    source = tmp_path / "file"
    source.write_bytes(b"content")
    run = Run(tmp_path, ALONE)
    for step in range(3):
        run.log_image("x", PIXELS, step=step)
        run.log_histogram("y", [1.0], step=step)
        run.log_artifact(source)
        run.log({"train/loss": 1.0}, step=step)
    run.flush()
    free = 10**9
    run.log_image("x", PIXELS, step=9)
    run.close()
    dropped, kept = records(tmp_path)
    assert (dropped.dropped, dropped.file, dropped.histogram) == ("disk_full", None, None)
    assert (kept.step, kept.dropped) == (9, None)
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3


def test_a_write_that_fails_leaves_no_content_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.BytesIO):
        def write(self, _: Any) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    run = Run(tmp_path, ALONE)
    source = tmp_path / "file"
    source.write_bytes(b"content")

    def opened(fd: int, _: str) -> Full:
        os.close(fd)
        return Full()

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdopen", opened)
        run.log_artifact(source)
        run.log_image("x", PIXELS)
        run.flush()
    run.log_image("x", PIXELS)
    run.close()
    names = {path.name for path in (tmp_path / "artifacts").iterdir()}
    first, last = records(tmp_path)
    assert (first.dropped, last.dropped) == ("disk_full", None)
    assert names == {"rank-0.jsonl", last.file}


def test_a_full_queue_drops_and_what_the_server_has_makes_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifact_writer, "QUEUE_ITEMS", 2)
    monkeypatch.setattr(artifact_writer.ArtifactWriter, "_start", lambda _: None)
    run = Run(tmp_path, ALONE)
    for step in range(5):
        run.log_image("x", PIXELS, step=step)
    run.flush()
    queued = [(each.step, each.dropped) for each in records(tmp_path)]
    assert queued == [(0, None), (1, None), (2, "queue_full")]
    monkeypatch.setattr(artifact_writer, "SPOOL_FILES", 2)
    run.log_image("x", PIXELS, step=5)
    run.flush()
    assert records(tmp_path)[-1].dropped == "spool_full"
    for path in (tmp_path / "artifacts").glob("rank-0-*"):
        path.unlink()
    run.log_image("x", PIXELS, step=6)
    run.flush()
    last = records(tmp_path)[-1]
    assert (last.step, last.dropped) == (6, None)


def test_a_full_queue_keeps_no_copy_of_what_it_drops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifact_writer, "QUEUE_ITEMS", 1)
    monkeypatch.setattr(artifact_writer.ArtifactWriter, "_start", lambda _: None)
    source = tmp_path / "file"
    source.write_bytes(b"content")
    run = Run(tmp_path, ALONE)
    for step in range(4):
        run.log_artifact(source, step=step)
    left = {path.name for path in (tmp_path / "artifacts").glob("rank-0-*")}
    run.flush()
    kept, dropped = records(tmp_path)
    assert left == {kept.file}
    assert (dropped.step, dropped.file, dropped.dropped) == (1, None, "queue_full")
    monkeypatch.setattr(artifact_writer, "SPOOL_FILES", 2)
    run.log_artifact(source, step=4)  # removed copies take no space
    run.flush()
    assert (records(tmp_path)[-1].step, records(tmp_path)[-1].dropped) == (4, None)


def test_content_whose_record_cannot_be_written_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    source = tmp_path / "file"
    source.write_bytes(b"content")
    run = Run(tmp_path, ALONE)
    with monkeypatch.context() as patch:
        patch.setattr(artifact_writer, "append_record", refuse)
        run.log_artifact(source)
        run.log_image("x", PIXELS)
        run.flush()
    assert list((tmp_path / "artifacts").iterdir()) == []
    run.close()


def test_no_call_blocks_a_step_for_a_millisecond_beyond_the_copy(tmp_path: Path) -> None:
    run = Run(tmp_path, ALONE)
    image = np.random.default_rng(0).integers(0, 255, (256, 256, 3), dtype=np.uint8)
    values = np.random.default_rng(0).normal(size=100_000).astype(np.float32)
    took = []
    for step in range(60):
        begun = time.perf_counter()
        run.log_image("x", image, step=step)
        run.log_histogram("y", values, step=step)
        took.append(time.perf_counter() - begun)
        time.sleep(0.02)
    run.close()
    assert len(records(tmp_path)) == 120
    # The median: a shared machine delays single calls.
    assert sorted(took)[30] < 0.001


def test_another_rank_has_a_file_of_its_own_and_a_fork_writes_nothing(tmp_path: Path) -> None:
    run = Run(tmp_path, ProcessPlace(rank=3, world_size=4, local_rank=1))
    run.log_histogram("x", [1.0])
    child = os.fork()
    if child == 0:
        run.log_histogram("forked", [1.0])
        run.close()
        os._exit(0)
    os.waitpid(child, 0)
    run.close()
    assert [each.name for each in records(tmp_path, rank=3)] == ["x"]
