"""Lets the fork server import `transformers`, so that no rank of this folder imports it anew."""

from tests.forkserver import preload

preload("tests.trainer.models.hub.preloaded")
