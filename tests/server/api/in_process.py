"""Starlette's test client, which calls an application without a socket."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it would rather have another HTTP library than httpx
    from starlette.testclient import TestClient

__all__ = ["TestClient"]
