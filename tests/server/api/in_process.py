"""Starlette's test client, which calls an application without a socket."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Starlette prefers another HTTP library to httpx
    from starlette.testclient import TestClient

__all__ = ["TestClient"]
