"""One S3 server for all tests of this folder, which ends with them, and a bucket for each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.objects.store import Server, serving
from trainer.storage import s3_client
from trainer.storage.object_path import ObjectPath

_numbers = itertools.count()


@pytest.fixture(scope="package")
def running() -> Iterator[Server]:
    with serving() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        # An earlier run of tests in this process had another server.
        s3_client._system.cache_clear()
        yield server


@pytest.fixture
def server(running: Server) -> Iterator[Server]:
    """The server, without faults."""
    running.fail()
    yield running
    running.fail()


@pytest.fixture
def bucket(server: Server) -> ObjectPath:
    """An empty bucket."""
    return server.make_bucket(f"bucket-{next(_numbers)}")
