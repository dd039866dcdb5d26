"""Objects of a real S3 server: uploads in parts, reads of ranges, retries, and errors by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.objects.store import Server
from trainer.checkpoint.writer.hashed_file import HashedFile
from trainer.errors import CheckpointError
from trainer.storage import s3_client, upload
from trainer.storage.io_errors import digest, file_digest, storage_errors
from trainer.storage.object_path import ObjectPath
from trainer.storage.upload import MAX_PARTS, PART, Upload, part_bytes

SMALL = 5 * 2**20  # the least size of a part, except the last, in S3
BLOCKS = [bytes([number]) * 2**20 for number in range(12)]


@pytest.fixture
def in_small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Split files into parts of the least size: three here."""
    monkeypatch.setattr(upload, "PART", SMALL)


def write(path: ObjectPath) -> str:
    """Write 12 MiB, and return the checksum computed during the write."""
    with HashedFile(path) as file:
        for block in BLOCKS:
            file.write(block)
        written = file.close()
    assert written.size == 12 * 2**20
    return written.xxh3_128


def test_a_path_is_what_the_settings_name() -> None:
    root = ObjectPath.root("s3://books/some/prefix")
    path = root / "job/a1" / "step-2"
    assert str(path) == "s3://books/some/prefix/job/a1/step-2"
    assert (path.key, path.name, str(path.parent)) == (
        "some/prefix/job/a1/step-2",
        "step-2",
        "s3://books/some/prefix/job/a1",
    )
    assert (path / "../../b").resolve() == root / "job/b"
    assert path.is_relative_to(root)
    assert not (root / "../prefix-2").resolve().is_relative_to(root)


@pytest.mark.parametrize("url", ["s3://", "s3://key:secret@books", "s3://books/../x", "s3://B"])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="without credentials"):
        ObjectPath.root(url)


@pytest.mark.usefixtures("in_small_parts")
def test_a_large_file_goes_in_parts_and_is_there_at_the_end(
    server: Server, bucket: ObjectPath
) -> None:
    path = bucket / "large"
    with HashedFile(path) as file:
        for block in BLOCKS:
            file.write(block)
        assert not path.exists()
        assert [found for found, _ in bucket.uploads()] == [path]
        written = file.close()
    assert len(server.requests("partNumber")) == 3
    assert bucket.uploads() == []
    assert written.xxh3_128 == digest(b"".join(BLOCKS)) == file_digest(path)
    assert path.stat().st_size == written.size


@pytest.mark.usefixtures("in_small_parts")
def test_a_file_that_is_given_up_leaves_nothing(bucket: ObjectPath) -> None:
    with HashedFile(bucket / "half") as file:
        for block in BLOCKS:
            file.write(block)
        assert bucket.uploads()
    assert bucket.uploads() == []
    assert list(bucket.beneath()) == []


def test_parts_are_few_enough_and_bounded_in_memory() -> None:
    assert part_bytes(0) == PART
    terabytes = 5 * 2**40
    assert terabytes / part_bytes(terabytes) <= MAX_PARTS
    assert part_bytes(terabytes) % 2**20 == 0
    most = [
        Upload(ObjectPath("b"), ceiling=ceiling)._most_in_flight for ceiling in (1, 3 * PART, 2**40)
    ]
    assert most == [1, 2, 4]


FAULTS: list[dict[str, Any]] = [
    {"method": "PUT", "match": "partNumber=1", "status": 500, "code": "InternalError", "times": 1},
    {"method": "PUT", "match": "partNumber=2", "status": 503, "code": "SlowDown", "times": 2},
    {"method": "PUT", "match": "partNumber=3", "drop": True, "times": 1},
    {"method": "POST", "match": "uploadId", "lost": True, "times": 1},
    {"method": "GET", "match": "large", "drop": True, "after": 1000, "times": 2},
]


@pytest.mark.usefixtures("in_small_parts")
def test_what_passes_is_tried_again(server: Server, bucket: ObjectPath) -> None:
    server.fail(*FAULTS)
    assert write(bucket / "large") == digest(b"".join(BLOCKS)) == file_digest(bucket / "large")
    assert len(server.requests("partNumber=2")) == 3


@pytest.mark.parametrize("content", [b"small", b"x" * (SMALL + 1)])
@pytest.mark.usefixtures("in_small_parts")
def test_a_file_is_created_exclusively_though_answers_are_lost(
    server: Server, bucket: ObjectPath, content: bytes
) -> None:
    path = bucket / "once"
    method = "PUT" if content == b"small" else "POST"
    server.fail({"method": method, "match": "once\\?(uploadId|$)", "lost": True, "times": 1})
    with HashedFile(path) as file:
        file.write(content)
        file.close()
    with HashedFile(path) as other:
        other.write(content[::-1] + b"other")
        with pytest.raises(CheckpointError, match="it exists already"):
            other.close()
    assert path.read_bytes() == content


def test_jumps_and_ends_are_read_as_of_a_file(bucket: ObjectPath) -> None:
    write(bucket / "large")
    with (bucket / "large").open("rb", buffering=0) as file:
        assert file.read(3) == bytes(3)
        file.seek(7 * 2**20 - 1)
        assert file.read(2) == bytes([6, 7])
        file.seek(7 * 2**20 + 5)
        assert file.read(2) == bytes([7, 7])
        file.seek(12 * 2**20 - 2)
        assert file.read(10) == bytes([11, 11])
        assert file.read(10) == b""
        file.seek(0)
        assert file.read(2) == bytes(2)


def test_all_of_a_folder_is_deleted_and_nothing_else(bucket: ObjectPath) -> None:
    for name in ("job/a1/x", "job/a1/y", "job/a10/x", "jobs/z"):
        (bucket / name).put(b"content")
    begun = bucket / "job/a1/z"
    s3_client.call("create_multipart_upload", str(begun), Bucket=bucket.bucket, Key=begun.key)
    (bucket / "job/a1").remove_all()
    assert bucket.uploads() == []
    assert [path.key for path in bucket.beneath()] == ["job/a10/x", "jobs/z"]


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "access denied": ({"status": 403, "code": "AccessDenied"}, "access denied (AccessDenied"),
    "bad signature": (
        {"status": 403, "code": "SignatureDoesNotMatch"},
        "access denied (SignatureDoesNotMatch",
    ),
    "throttled": ({"status": 503, "code": "SlowDown"}, "refuses so many requests (SlowDown"),
    "failed": ({"status": 500, "code": "InternalError"}, "the object store has failed (Internal"),
    "hung up": ({"drop": True}, "the object store does not answer (ConnectionClosed"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_lasts_is_an_error_with_its_reason(
    server: Server, bucket: ObjectPath, name: str
) -> None:
    fault, words = REFUSALS[name]
    server.fail({"method": "GET", "match": "list-type", "times": 100, **fault})
    with pytest.raises(CheckpointError) as refused, storage_errors("read", bucket):
        list(bucket.beneath())
    assert f"cannot read {bucket}: " in str(refused.value)
    assert words in str(refused.value)
    assert refused.value.path == str(bucket)
    # Of a connection that is closed, aiohttp tries another one by itself.
    assert len(server.requests()) in ((1,) if fault.get("status") == 403 else (3, 6))


def test_a_missing_bucket_is_named(server: Server) -> None:
    nowhere = ObjectPath("no-such-bucket")
    with pytest.raises(CheckpointError, match="there is no such bucket"):  # noqa: SIM117
        with storage_errors("read", nowhere):
            list(nowhere.beneath())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, "no credentials"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, "does not answer (EndpointConnectionError"),
    ],
)
def test_nobody_to_ask_is_said(
    bucket: ObjectPath, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], words: str
) -> None:
    for name, value in changes.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    s3_client._system.cache_clear()
    try:
        with pytest.raises(CheckpointError) as refused, storage_errors("read", bucket):
            list(bucket.beneath())
    finally:
        s3_client._system.cache_clear()
    assert words in str(refused.value)
    assert "shown-nowhere" not in str(refused.value)


@pytest.fixture
def new_client(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """No variables of proxies, and a client of the store that is made by the test."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    s3_client._system.cache_clear()
    yield monkeypatch
    s3_client._system.cache_clear()


@pytest.mark.parametrize("value", ["http://127.0.0.1:9", "socks5://127.0.0.1:9"])
def test_no_proxy_leads_to_a_store_on_this_machine(
    bucket: ObjectPath, new_client: pytest.MonkeyPatch, value: str
) -> None:
    new_client.setenv("HTTP_PROXY", value)
    write(bucket / "a")
    assert len((bucket / "a").read_bytes()) == 12 * 2**20


def test_a_proxy_that_cannot_lead_to_the_store_is_named(new_client: pytest.MonkeyPatch) -> None:
    new_client.setenv("AWS_ENDPOINT_URL", "http://store.test:9000")
    new_client.setenv("HTTP_PROXY", "socks5://ada:secret@127.0.0.1:9")
    with pytest.raises(OSError, match=r"HTTP_PROXY='socks5://127\.0\.0\.1:9'.*store\.test"):
        (ObjectPath("s3://bucket") / "a").read_bytes()
