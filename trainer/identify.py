"""`python -m trainer identify s3://BUCKET/PREFIX`: prints the UUID of an object-store root.

A root without a UUID gets one. Workers compare UUIDs to verify that nodes share the same storage.
"""

from __future__ import annotations

import sys
import uuid
from contextlib import suppress

from trainer.errors import RunError
from trainer.storage.io_errors import storage_errors
from trainer.storage.object_path import ObjectPath
from trainer.storage.root import storage_root
from trainyard.spec.storage_uri import ROOT_FILE


def main(url: str) -> int:
    """Print the UUID and return 0; on an error, print the error to stderr and return 1."""
    try:
        root = storage_root(url)
        assert isinstance(root, ObjectPath), "workers identify folders without the trainer"
        text = identity(root)
    except RunError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{text}\n")
    return 0


def identity(root: ObjectPath) -> str:
    """Return the UUID in the root's file; create the file if it is missing.

    Raises:
        CheckpointError: the object store rejects the request, or the bucket does not exist.
    """
    file = root / ROOT_FILE
    with storage_errors("read", file):
        # A listing, unlike a read, distinguishes a missing bucket from a missing object. It also
        # checks the permission to list, which later operations need.
        if file not in root.beneath(start=ROOT_FILE):
            # If several nodes do this at the same time, one of them creates the file, and all read
            # it.
            with suppress(FileExistsError):
                file.put(f"{uuid.uuid4()}\n".encode(), new=True)
        return file.read_bytes().decode("utf-8", errors="replace").strip()
