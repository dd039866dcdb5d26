"""The built dashboard: files, one page for all views, headers, and no path outside its folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.app.dashboard import BUILT
from server.app.factory import create_app
from server.core.context import Context
from tests.server.api.in_process import TestClient

PAGE = {"accept": "text/html"}


@pytest.fixture
def browser(context: Context, tmp_path: Path) -> TestClient:
    """A browser at a server with a built dashboard."""
    folder = tmp_path / "dist"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text("<title>Trainyard</title>")
    (folder / "assets" / "index-abc123.js").write_text("1")
    (folder / "icon.svg").write_text("<svg/>")
    (tmp_path / "secret.txt").write_text("hunter2")
    settings = context.settings.model_copy(update={"web_dir": folder})
    return TestClient(create_app(Context(settings, context.database, context.clock)))


@pytest.mark.parametrize(
    "path", ["/", "/jobs", "/jobs/01jd3m6y0000000000000000a7?tab=logs", "/login"]
)
def test_every_view_is_the_one_page(browser: TestClient, path: str) -> None:
    response = browser.get(path, headers=PAGE)
    assert response.status_code == 200
    assert "Trainyard" in response.text
    assert response.headers["cache-control"] == "no-cache"
    policy = response.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert response.headers["x-content-type-options"] == "nosniff"


def test_files_are_served_and_hashed_ones_kept(browser: TestClient) -> None:
    script = browser.get("/assets/index-abc123.js")
    assert script.text == "1"
    assert "javascript" in script.headers["content-type"]
    assert "immutable" in script.headers["cache-control"]
    assert browser.get("/icon.svg").headers["cache-control"] == "no-cache"
    assert browser.head("/icon.svg").headers["content-length"] == "6"
    etag = script.headers["etag"]
    again = browser.get("/assets/index-abc123.js", headers={"if-none-match": etag})
    assert again.status_code == 304


def test_an_old_script_is_not_the_page(browser: TestClient) -> None:
    assert browser.get("/assets/index-old.js").status_code == 404


@pytest.mark.parametrize("path", ["/api/v1/nothing", "/api/", "/api/v1/jobs/"])
def test_the_api_is_never_the_page(browser: TestClient, path: str) -> None:
    response = browser.get(path, headers=PAGE)
    assert response.status_code == 404
    assert response.headers["content-type"] == "application/problem+json"


def test_nothing_is_written_to_the_page(browser: TestClient) -> None:
    assert browser.post("/jobs").status_code == 404


@pytest.mark.parametrize(
    "path", ["/..%2fsecret.txt", "/%2e%2e/secret.txt", "/assets/..%2f..%2fsecret.txt", "/a%00b"]
)
def test_no_path_leads_out_of_the_folder(browser: TestClient, path: str) -> None:
    assert "hunter2" not in browser.get(path).text


def test_without_a_built_dashboard_there_is_only_the_api(context: Context, tmp_path: Path) -> None:
    settings = context.settings.model_copy(update={"web_dir": tmp_path})
    client = TestClient(create_app(Context(settings, context.database, context.clock)))
    assert client.get("/", headers=PAGE).status_code == 404
    assert client.get("/healthz").status_code == 200


def test_builds_lie_where_they_are_put() -> None:
    """`pyproject.toml` puts a build into the package `server`, npm into `web` of a checkout."""
    root = Path(__file__).resolve().parents[3]
    assert (root / "web" / "package.json").is_file()
    assert (root / "server" / "web_dist", root / "web" / "dist") == BUILT
