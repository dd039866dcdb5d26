"""Paths in an object store, with the methods of `pathlib.Path` that checkpoints use."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from trainer.storage import s3_client
from trainer.storage.download import Download
from trainyard.spec.storage_uri import OBJECTS, split_object_store

DELETED_AT_ONCE = 1000
"""Maximum number of objects per delete request, a limit of S3."""

LARGEST_SMALL = 2**30
"""Maximum number of bytes that `read_bytes` returns; a larger object is cut off."""


class ObjectStat(NamedTuple):
    """The metadata of an object."""

    st_size: int
    """Size of the object in bytes."""


@dataclass(frozen=True, order=True)
class ObjectPath:
    """Path of an object, or a key prefix that serves as a folder."""

    bucket: str
    """Name of the bucket."""
    parts: tuple[str, ...] = ()
    """Parts of the key, between slashes."""

    @classmethod
    def root(cls, url: str) -> ObjectPath:
        """Return the root of the URL `s3://bucket/prefix`.

        Raises:
            ValueError: the URL has another form.
        """
        bucket, prefix = split_object_store(url)
        return cls(bucket, tuple(filter(None, prefix.split("/"))))

    def __str__(self) -> str:
        return f"{OBJECTS}{'/'.join((self.bucket, *self.parts))}"

    def __truediv__(self, relative: str) -> ObjectPath:
        before = () if relative.startswith("/") else self.parts  # as in pathlib
        return ObjectPath(self.bucket, (*before, *filter(None, relative.split("/"))))

    @property
    def key(self) -> str:
        """Key of the object in its bucket."""
        return "/".join(self.parts)

    @property
    def name(self) -> str:
        """Last part of the key; the bucket's name if the key is empty."""
        return self.parts[-1] if self.parts else self.bucket

    @property
    def parent(self) -> ObjectPath:
        """The path without its last part."""
        return ObjectPath(self.bucket, self.parts[:-1])

    def resolve(self) -> ObjectPath:
        """Return the path without `..`; an object store has no links to follow."""
        kept: list[str] = []
        for part in self.parts:
            if part == "..":
                kept = kept[:-1]
            elif part != ".":
                kept.append(part)
        return ObjectPath(self.bucket, tuple(kept))

    def is_relative_to(self, other: ObjectPath) -> bool:
        """Return whether this path equals another path or lies below it."""
        beginning = self.parts[: len(other.parts)]
        return (self.bucket, beginning) == (other.bucket, other.parts)

    def exists(self) -> bool:
        """Return whether the object exists; False for a folder.

        Raises:
            OSError: the object store rejects the request or does not respond.
        """
        try:
            self.stat()
        except FileNotFoundError:
            return False
        return True

    def stat(self) -> ObjectStat:
        """Return the object's size.

        Raises:
            OSError: the object does not exist, or the object store does not respond.
        """
        answer = s3_client.call("head_object", str(self), Bucket=self.bucket, Key=self.key)
        return ObjectStat(answer["ContentLength"])

    def read_bytes(self) -> bytes:
        """Return the content of a small object.

        Raises:
            OSError: the object cannot be read.
        """
        with self.open("rb", buffering=0) as file:
            return file.read(LARGEST_SMALL)

    def open(self, _mode: Literal["rb"], *, buffering: Literal[0]) -> Download:
        """Open the object for sequential reads.

        Raises:
            OSError: the object does not exist, or the object store rejects the request.
        """
        assert buffering == 0
        return Download(self.bucket, self.key, name=str(self), size=self.stat().st_size)

    def put(self, content: bytes, *, new: bool = False) -> None:
        """Write a small object with one request.

        Raises:
            OSError: the object store rejects the request; with `new`, `FileExistsError` if the
                object exists.
        """
        condition = {"IfNoneMatch": "*"} if new else {}
        s3_client.call(
            "put_object", str(self), Bucket=self.bucket, Key=self.key, Body=content, **condition
        )

    def unlink(self, *, missing_ok: Literal[True]) -> None:
        """Delete the object if it exists.

        Raises:
            OSError: the object store rejects the request.
        """
        assert missing_ok
        s3_client.call("delete_object", str(self), Bucket=self.bucket, Key=self.key)

    def beneath(self, *, start: str = "") -> Iterator[ObjectPath]:
        """Yield the folder's objects whose relative names begin with `start`, sorted by name.

        Raises:
            OSError: the object store rejects the listing.
        """
        prefix = f"{self._prefix}{start}"
        for answer in self._pages("list_objects_v2", "ContinuationToken", prefix=prefix):
            for found in answer.get("Contents", ()):
                yield ObjectPath(self.bucket, tuple(found["Key"].split("/")))

    def remove_all(self) -> None:
        """Delete every object, and abort every multipart upload, below a folder.

        Raises:
            OSError: the object store rejects a request.
        """
        for path, upload in self.uploads():
            path.abort(upload)
        found = list(self.beneath())
        for start in range(0, len(found), DELETED_AT_ONCE):
            names = [{"Key": path.key} for path in found[start : start + DELETED_AT_ONCE]]
            answer = s3_client.call(
                "delete_objects",
                str(self),
                Bucket=self.bucket,
                Delete={"Objects": names, "Quiet": True},
            )
            for refused in answer.get("Errors", ()):
                what = f"{refused.get('Code')} {refused.get('Message')}"
                raise OSError(errno.EACCES, what, str(ObjectPath(self.bucket) / refused["Key"]))

    def uploads(self) -> list[tuple[ObjectPath, str]]:
        """Return path and id of each unfinished multipart upload below a folder.

        Raises:
            OSError: the object store rejects the listing.
        """
        return [
            (ObjectPath(self.bucket, tuple(upload["Key"].split("/"))), upload["UploadId"])
            for answer in self._pages(
                "list_multipart_uploads", "KeyMarker", "UploadIdMarker", prefix=self._prefix
            )
            for upload in answer.get("Uploads", ())
        ]

    def _pages(self, method: str, *markers: str, prefix: str) -> Iterator[dict[str, Any]]:
        """Yield the pages of a listing; `markers` are the arguments that select the next page."""
        more: dict[str, str] = {}
        while True:
            answer = s3_client.call(method, str(self), Bucket=self.bucket, Prefix=prefix, **more)
            yield answer
            if not answer.get("IsTruncated"):
                return
            more = {marker: answer[f"Next{marker}"] for marker in markers}

    def abort(self, upload: str) -> None:
        """Abort a multipart upload; do nothing if it no longer exists.

        Raises:
            OSError: the object store rejects the request.
        """
        try:
            s3_client.call(
                "abort_multipart_upload",
                str(self),
                Bucket=self.bucket,
                Key=self.key,
                UploadId=upload,
            )
        except FileNotFoundError:
            return

    @property
    def _prefix(self) -> str:
        return f"{self.key}/" if self.parts else ""
