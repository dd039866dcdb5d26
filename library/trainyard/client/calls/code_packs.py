"""Calls of the SDK for packs, which contain the code of programs."""

from __future__ import annotations

import hashlib

from trainyard.client.errors import NotFoundError
from trainyard.client.transport import Transport
from trainyard.protocol.rest.jobs import PackView


class PackCalls:
    """Calls of `Client` for packs."""

    transport: Transport
    """Sends the requests."""

    def upload_pack(self, archive: bytes) -> PackView:
        """Upload a gzipped tar archive unless the server has it; a repeat changes nothing.

        The server keeps the pack for at least a day, and as long as a job refers to the pack.

        Raises:
            InvalidRequestError: the server accepts no code from jobs.
            ApiError: the pack is too large, or you have too many packs.
        """
        digest = f"sha256:{hashlib.sha256(archive).hexdigest()}"
        try:
            return self.transport.get(PackView, f"/packs/{digest}")
        except NotFoundError:
            return self.transport.upload(
                PackView, "/packs", archive, query={"digest": digest}, media_type="application/gzip"
            )
