"""`python -m trainer identify s3://BUCKET/PREFIX`: print the UUID of a root in an object store.

A root that has none gets one. The worker asks, since nodes prove by it that they see the same one.
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
    """Print the UUID and return 0, or say on standard error why there is none and return 1."""
    try:
        root = storage_root(url)
        assert isinstance(root, ObjectPath), "the worker looks into folders itself"
        text = identity(root)
    except RunError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{text}\n")
    return 0


def identity(root: ObjectPath) -> str:
    """Return what the root's file holds, after making it where there is none.

    Raises:
        CheckpointError: the object store refuses, or there is no such bucket.
    """
    file = root / ROOT_FILE
    with storage_errors("read", file):
        # A listing tells a missing bucket from a missing object, and proves that it is allowed.
        if file not in root.beneath(start=ROOT_FILE):
            # Of several nodes that come at once, one gives the name, and all read that one.
            with suppress(FileExistsError):
                file.put(f"{uuid.uuid4()}\n".encode(), new=True)
        return file.read_bytes().decode("utf-8", errors="replace").strip()
