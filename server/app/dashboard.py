"""The dashboard: the built files, and one page for all paths other than files and the API."""

from __future__ import annotations

from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from server.api.http.middleware import API_PREFIX

_SERVER = Path(__file__).resolve().parent.parent
BUILT = (_SERVER / "web_dist", _SERVER.parent / "web" / "dist")
"""Folders of the built dashboard: in an installed package, and in a checkout."""
INDEX = "index.html"
# Vite puts a hash of the content into these file names, so the file at a path never changes.
HASHED = "/assets/"
FOREVER = "public, max-age=31536000, immutable"


def dashboard_dir(given: Path | None) -> Path | None:
    """Return the folder of the built dashboard, or None if there is no build."""
    folders = BUILT if given is None else (given,)
    return next((folder for folder in folders if (folder / INDEX).is_file()), None)


class Dashboard:
    """Serves the files of a folder, and its page for other paths outside the API, to GET requests;
    passes all other requests on."""

    def __init__(self, folder: Path, *, otherwise: ASGIApp) -> None:
        self._files = StaticFiles(directory=folder)
        self._index = folder / INDEX
        self._otherwise = otherwise

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        path = scope["path"]
        if scope["type"] != "http" or scope["method"] != "GET" or path.startswith(API_PREFIX):
            await self._otherwise(scope, receive, send)
            return
        response = await self._file(scope)
        if response is not None:
            response.headers["cache-control"] = FOREVER if path.startswith(HASHED) else "no-cache"
            await response(scope, receive, send)
        elif path.startswith(HASHED):
            await self._otherwise(scope, receive, send)
        else:  # the path is a view of the single page
            page = FileResponse(self._index, headers={"cache-control": "no-cache"})
            await page(scope, receive, send)

    async def _file(self, scope: Scope) -> Response | None:
        try:
            return await self._files.get_response(self._files.get_path(scope), scope)
        except (HTTPException, ValueError):  # no such file, or an invalid path
            return None
