"""Multipart upload of a new object during writing; bounded memory, atomic creation."""

from __future__ import annotations

import io
import logging
import math
import uuid
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from trainer.storage import s3_client

if TYPE_CHECKING:
    from trainer.storage.object_path import ObjectPath

PART = 32 * 2**20
"""Minimum bytes per part. All parts except the last have the same size, which some object stores
require."""
MAX_PARTS = 9_000
"""Maximum number of parts for an object of the expected size. S3's limit is 10,000; the margin is
for objects larger than expected.
"""
IN_FLIGHT = 4
"""Maximum number of parts in transfer, if the memory limit allows it."""

logger = logging.getLogger(__name__)


class Upload:
    """An upload; `complete` creates the object, and `close` without `complete` drops the parts."""

    def __init__(self, path: ObjectPath, *, expected: int = 0, ceiling: int = 2**40) -> None:
        """Prepare the upload, which starts with the first full part.

        Args:
            path: path of the new object.
            expected: approximate size in bytes; a larger object is sent in larger parts.
            ceiling: maximum memory for parts, in bytes; two parts are always allowed.
        """
        self.closed = False
        self._path = path
        self._part = part_bytes(expected)
        self._most_in_flight = max(1, min(IN_FLIGHT, ceiling // self._part - 1))
        self._filling = io.BytesIO()
        self._id: str | None = None
        self._sent = 0
        self._in_flight: deque[tuple[int, Future[dict[str, Any]]]] = deque()
        self._parts: list[dict[str, Any]] = []
        # Identifies this upload's object. A retry after a lost response finds an object, which may
        # come from this upload or from another writer.
        self._token = uuid.uuid4().hex
        self._metadata = {"trainyard-upload": self._token}
        self._place = {"Bucket": path.bucket, "Key": path.key}
        self._completed = False

    def write(self, data: memoryview) -> int:
        """Buffer bytes until the current part is full; return the number of buffered bytes.

        Raises:
            OSError: the object store rejects a part.
        """
        taken = self._filling.write(data[: self._part - self._filling.tell()])
        if self._filling.tell() == self._part:
            self._send()
        return taken

    def complete(self) -> None:
        """Send the remaining bytes and create the object.

        Raises:
            OSError: the object store rejects the object; `FileExistsError` if the object exists.
        """
        if self._id is None:
            self._create("put_object", Body=self._take(), Metadata=self._metadata)
            self._completed = True
            return
        if self._filling.tell():
            self._send()
        while self._in_flight:
            self._wait_for_one()
        self._create(
            "complete_multipart_upload",
            UploadId=self._id,
            MultipartUpload={"Parts": self._parts},
        )
        self._completed = True

    def close(self) -> None:
        """Abort an incomplete upload; if this fails, `ObjectPath.remove_all` aborts it later."""
        if self.closed:
            return
        self.closed = True
        for _, part in self._in_flight:
            part.cancel()
        if self._id is None or self._completed:
            return
        try:
            self._path.abort(self._id)
        except OSError as error:
            logger.warning("an upload is left unfinished: %s: %s", error.filename, error.strerror)

    def _send(self) -> None:
        if self._id is None:
            answer = s3_client.call(
                "create_multipart_upload", str(self._path), **self._place, Metadata=self._metadata
            )
            self._id = answer["UploadId"]
        while len(self._in_flight) >= self._most_in_flight:
            self._wait_for_one()
        self._sent += 1
        number = {"UploadId": self._id, "PartNumber": self._sent}
        begun = s3_client.begin("upload_part", **self._place, **number, Body=self._take())
        self._in_flight.append((self._sent, begun))

    def _take(self) -> io.BytesIO:
        """Return the filled buffer as a file, because aiohttp would block other tasks while it
        sends `bytes`."""
        filled, self._filling = self._filling, io.BytesIO()
        filled.seek(0)
        return filled

    def _wait_for_one(self) -> None:
        number, begun = self._in_flight.popleft()
        answer = s3_client.wait(begun, str(self._path))
        self._parts.append({"PartNumber": number, "ETag": answer["ETag"]})

    def _create(self, method: str, **arguments: Any) -> None:
        try:
            s3_client.call(method, str(self._path), **self._place, **arguments, IfNoneMatch="*")
        except (FileExistsError, FileNotFoundError):
            if not self._is_there():
                raise

    def _is_there(self) -> bool:
        """Return whether the existing object is from this upload, whose response may be lost."""
        try:
            answer = s3_client.call("head_object", str(self._path), **self._place)
        except FileNotFoundError:
            return False
        return bool(answer.get("Metadata", {}).get("trainyard-upload") == self._token)


def part_bytes(expected: int) -> int:
    """Return a part size with which an object of `expected` bytes has at most `MAX_PARTS` parts."""
    return max(PART, math.ceil(expected / MAX_PARTS / 2**20) * 2**20)
