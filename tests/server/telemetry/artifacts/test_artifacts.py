"""Artifacts: uploaded in blocks by attempts, named by reports, listed, fetched, deleted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from server.api.auth.service import create_token
from server.core.context import Context
from server.jobs.jobs.service import delete
from server.telemetry.artifacts import store, uploads
from server.telemetry.artifacts.cleaning import ContentCleaner
from tests.actors import ADA
from tests.server.api.in_process import TestClient
from tests.server.api.serving import serving
from tests.server.harness import Harness, Supervisor
from tests.server.reports import chunk, kept_events, send
from tests.server.telemetry.artifacts.uploading import (
    counts,
    digest_of,
    line,
    released,
    report,
    upload,
)
from trainyard.client.errors import UnknownReferenceError
from trainyard.client.sdk import Client
from trainyard.protocol.job_artifacts.messages import BLOCK_BYTES
from trainyard.protocol.rest.access import TokenRequest
from trainyard.run.artifacts.artifact_records import ArtifactLine, DropReason, HistogramRecord
from trainyard.run.record_base import to_json

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(200))


def test_content_comes_back_by_the_sdk_byte_by_byte(
    context: Context, launched: tuple[str, Supervisor], tmp_path: Path
) -> None:
    job_id, supervisor = launched
    large = os.urandom(2 * BLOCK_BYTES + 5)
    contents = {"out/large.bin": large, "out/in/empty": b"", "other": b"x"}
    for content in contents.values():
        assert upload(context, supervisor, content).stored == len(content)
    report(context, supervisor, *(line(name, each) for name, each in contents.items()))
    with serving(context) as url:
        _, token = create_token(context, TokenRequest(name="ada"))
        with Client(url, token) as yard:
            written = yard.download_artifacts(job_id, "out", tmp_path)
            assert [str(path.relative_to(tmp_path)) for path in written] == [
                "out/in/empty",
                "out/large.bin",
            ]
            assert (tmp_path / "out/large.bin").read_bytes() == large
            assert (tmp_path / "out/in/empty").read_bytes() == b""
            with pytest.raises(UnknownReferenceError, match="no image or file 'ou'"):
                yard.download_artifacts(job_id, "ou", tmp_path)
            assert {view.name for view in yard.artifacts(job_id)} == set(contents)


def test_the_newest_of_a_name_is_downloaded(
    context: Context, launched: tuple[str, Supervisor], tmp_path: Path
) -> None:
    job_id, supervisor = launched
    for content in (b"1", b"2", b"3"):
        upload(context, supervisor, content)
    report(context, supervisor, *(line("best", each) for each in (b"2", b"3", b"1")))
    with serving(context) as url:
        _, token = create_token(context, TokenRequest(name="ada"))
        with Client(url, token) as yard:
            yard.download_artifacts(job_id, "best", tmp_path)
    assert (tmp_path / "best").read_bytes() == b"1"


def test_an_attempt_uploads_with_its_own_token_alone_and_no_content_of_another_job(
    context: Context,
    harness: Harness,
    launched: tuple[str, Supervisor],
    client: TestClient,
    anonymous: TestClient,
) -> None:
    _, supervisor = launched
    harness.add_node("node-2")
    other_id, (other,) = harness.launched()
    path = f"/api/v1/workers/attempts/{supervisor.attempt_id}/artifacts/{digest_of(b'x')}"
    query = "?offset=0&size=1"
    assert client.put(path + query, content=b"x").status_code == 401
    foreign = {"authorization": f"Bearer {other.reply.attempt_token}"}
    assert anonymous.put(path + query, content=b"x", headers=foreign).status_code == 401
    own = {"authorization": f"Bearer {supervisor.reply.attempt_token}"}
    assert anonymous.put(path + query, content=b"x", headers=own).json()["stored"] == 1
    large = anonymous.put(path + query, content=bytes(BLOCK_BYTES + 1), headers=own)
    assert large.status_code == 422
    # The other job names content that it has not uploaded: a digest alone gives no access.
    report(context, other, line("stolen", b"x"))
    assert client.get(f"/api/v1/jobs/{other_id}/artifacts").json()["items"] == []
    (event,) = kept_events(context, "output_dropped")
    assert event == {"what": "artifacts", "reason": "unreadable", "first": "stolen"}


def test_reports_are_stored_once_and_filtered_by_kind_and_name(
    context: Context, launched: tuple[str, Supervisor], client: TestClient
) -> None:
    job_id, supervisor = launched
    upload(context, supervisor, PNG)
    upload(context, supervisor, b"text")
    histogram = HistogramRecord(edges=(0.0, 1.0), counts=(3,), nan=1)
    lines = (
        line("samples/a", PNG, kind="image", step=1, caption="first"),
        line("samples/b", b"text", kind="image", step=2),
        line("weights", kind="histogram", step=2, histogram=histogram),
        line("samples_of/x", b"text", kind="model"),
    )
    end = report(context, supervisor, *lines)
    assert report(context, supervisor, *lines) == end  # the answer was lost
    path = f"/api/v1/jobs/{job_id}/artifacts"
    found = client.get(path).json()["items"]
    assert [each["name"] for each in found] == ["samples_of/x", "weights", "samples/b", "samples/a"]
    assert found[1]["histogram"]["counts"] == [3]
    assert (found[1]["size"], found[1]["media_type"]) == (None, None)
    assert (found[3]["media_type"], found[3]["caption"], found[3]["size"]) == (
        "image/png",
        "first",
        len(PNG),
    )
    # A file that is no image has another kind, whatever the script declares.
    assert (found[2]["kind"], found[2]["media_type"]) == ("file", "application/octet-stream")

    def names(query: str) -> list[str]:
        return [each["name"] for each in client.get(f"{path}?{query}").json()["items"]]

    assert names("kind=image") == ["samples/a"]
    assert names("name=samples") == ["samples/b", "samples/a"]
    assert names("name=weights&kind=histogram") == ["weights"]
    assert names("name=sampl") == []
    assert names("without=histogram&without=image") == ["samples_of/x", "samples/b"]
    first = client.get(f"{path}?page_size=3").json()
    assert len(first["items"]) == 3
    rest = client.get(f"{path}?page_size=3&page_token={first['next_page_token']}").json()
    assert [each["name"] for each in rest["items"]] == ["samples/a"]
    # Each group has its own notice: a later one of another group does not replace it.
    notices = kept_events(context, "artifacts")
    assert {each["group"]: each["count"] for each in notices} == {
        "image": 1,
        "histogram": 1,
        "files": 2,
    }


def test_content_has_headers_that_no_page_can_misuse(
    context: Context, launched: tuple[str, Supervisor], client: TestClient, anonymous: TestClient
) -> None:
    job_id, supervisor = launched
    page = b"<html><script>alert(1)</script>"
    upload(context, supervisor, PNG)
    upload(context, supervisor, page)
    report(context, supervisor, line("a/b.png", PNG, kind="image"), line('x"; é.html', page))
    path = f"/api/v1/jobs/{job_id}/artifacts"
    html, image = client.get(path).json()["items"]
    shown = client.get(f"{path}/{image['id']}/content")
    assert shown.content == PNG
    assert shown.headers["content-type"] == "image/png"
    assert shown.headers["content-disposition"].startswith('inline; filename="b.png"')
    file = client.get(f"{path}/{html['id']}/content")
    assert file.content == page
    assert file.headers["content-type"] == "application/octet-stream"
    assert file.headers["content-disposition"] == (
        "attachment; filename=\"x____.html\"; filename*=UTF-8''x%22%3B%20%C3%A9.html"
    )
    for answer in (shown, file):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-security-policy"] == "sandbox; default-src 'none'"
        assert answer.headers["content-length"] == str(len(answer.content))
    assert anonymous.get(f"{path}/{image['id']}/content").status_code == 401
    assert client.get(f"{path}/{job_id}/content").status_code == 404
    other = f"/api/v1/jobs/{'0' * 26}/artifacts/{image['id']}/content"
    assert client.get(other).status_code == 404


@pytest.mark.parametrize("reason", ["disk_full", "spool_full"])
def test_each_reason_of_a_drop_is_one_event_of_an_attempt(
    context: Context, launched: tuple[str, Supervisor], reason: DropReason
) -> None:
    _, supervisor = launched
    lost = ArtifactLine(process=-1, end=0, record=None, dropped=reason)
    end = report(
        context,
        supervisor,
        line("a", dropped="disk_full"),
        line("b", dropped="disk_full"),
        line("c", dropped="quota"),
        lost,
    )
    report(context, supervisor, line("d", dropped="disk_full"), lost, start=end)
    assert kept_events(context, "output_dropped") == [
        {"what": "artifacts", "reason": "disk_full", "first": "a"},
        {"what": "artifacts", "reason": "quota", "first": "c"},
        {"what": "logs", "reason": reason, "first": None},
    ]


def test_a_line_that_is_no_artifact_is_skipped_among_others(
    context: Context, launched: tuple[str, Supervisor]
) -> None:
    _, supervisor = launched
    upload(context, supervisor, b"x")
    good = to_json(line("good", b"x")).encode()
    bad = [
        b"{}",
        good.replace(b'"good"', b'"../good"'),
        good.replace(b'"file"', b'"histogram"', 1),
        good.replace(b'"step":null', b'"step":-1'),
        good.replace(b"1000.0", b'"NaN"'),
    ]
    send(context, supervisor, chunk("artifacts", b"\n".join([*bad, good, b""])))
    assert counts(context)[0] == 1
    assert len(kept_events(context, "line_skipped")) == len(bad)


def test_a_job_has_a_greatest_number_of_artifacts(
    context: Context, launched: tuple[str, Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, supervisor = launched
    monkeypatch.setattr(store, "MAX_ARTIFACTS", 2)
    monkeypatch.setattr(uploads, "MAX_CONTENTS", 1)
    upload(context, supervisor, b"x")
    assert upload(context, supervisor, b"y").refused == "too_many"
    report(context, supervisor, *(line(name, b"x") for name in "abc"))
    assert counts(context)[0] == 2
    assert [each["reason"] for each in kept_events(context, "output_dropped")] == ["too_many"]


def test_artifacts_go_with_their_job(context: Context, launched: tuple[str, Supervisor]) -> None:
    job_id, supervisor = launched
    upload(context, supervisor, PNG)
    report(context, supervisor, line("a", PNG, kind="image"))
    supervisor.end("succeeded")
    assert counts(context) == (1, 1, 1)
    delete(context, job_id, actor=ADA, checkpoints="keep")
    assert (counts(context), released(context)) == ((0, 1, 1), 1)
    ContentCleaner(context).clean()
    assert counts(context) == (0, 0, 0)
