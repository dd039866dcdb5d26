"""Missing rights, expiring pages, and a busy, slow, broken or unreachable API server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from provisioner.base import LoginNeeded, SourceError
from provisioner.kubernetes import cluster_api
from tests.provisioner.kubernetes.api import Fault
from tests.provisioner.kubernetes.conftest import REQUEST, Bench
from tests.provisioner.kubernetes.serving import kubeconfig
from trainyard.outside.proxies import ProxyError

OTHER = "01hf7yat00ekjk5hxa9f0e4cr0"
NAME = f"trainyard-{REQUEST}"


@pytest.mark.parametrize(("verb", "resource"), [("create", "jobs"), ("create", "secrets")])
def test_a_missing_right_to_submit_is_named_and_final(
    bench: Bench, verb: str, resource: str
) -> None:
    bench.api.allowed.remove((verb, resource))
    with pytest.raises(SourceError, match=f"{verb} {resource}.* in namespace training: 403") as e:
        bench.submit()
    assert e.value.refused


@pytest.mark.parametrize(("verb", "resource"), [("list", "jobs"), ("list", "pods")])
def test_a_missing_right_to_list_is_named(bench: Bench, verb: str, resource: str) -> None:
    bench.api.allowed.remove((verb, resource))
    with pytest.raises(SourceError, match=f"{verb} {resource}.* in namespace training: 403"):
        bench.source.list()


def test_a_full_quota_is_no_final_refusal(bench: Bench) -> None:
    body = json.dumps({"message": "exceeded quota: jobs, requested: 1, limited: 0"}).encode()
    bench.api.faults.append(Fault("POST", status=403, body=body))
    with pytest.raises(SourceError, match="exceeded quota") as caught:
        bench.submit()
    assert not caught.value.refused
    bench.submit()


def test_a_manifest_that_the_server_does_not_take_is_refused(bench: Bench, tmp_path: Path) -> None:
    template = tmp_path / "pod.yaml"
    template.write_text("spec:\n  nodeSelectr: {gpu: a100}\n")
    source = bench.make(pod_template=str(template))
    with pytest.raises(SourceError, match=r"422 .*nodeSelectr") as caught:
        source.submit(bench.submission)
    assert caught.value.refused


def test_a_listing_of_many_pages_is_whole_and_begins_anew_when_its_pages_expire(
    bench: Bench,
) -> None:
    requests = [f"01hf7yat00ekjk5hxa9f0e4c{n:02d}" for n in range(7)]
    for request in requests:
        bench.submit(request_id=request)
    bench.api.page, bench.api.expire = 3, 2
    assert sorted(job.request_id for job in bench.source.list().jobs) == requests
    bench.api.expire = 99
    with pytest.raises(SourceError, match="pages expired"):
        bench.source.list()


def test_a_listing_without_an_end_is_an_error(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("provisioner.kubernetes.cluster_api.MAX_PAGES", 1)
    bench.api.page = 4  # two pods a request
    for number in range(2):
        bench.submit(request_id=f"01hf7yat00ekjk5hxa9f0e4c{number:02d}")
    assert len(bench.source.list().jobs) == 2
    bench.submit(request_id="01hf7yat00ekjk5hxa9f0e4c02")
    with pytest.raises(SourceError, match="list pods: the answer has more than 1 pages"):
        bench.source.list()


def test_jobs_of_others_are_not_listed(bench: Bench) -> None:
    bench.submit()
    bench.submit(request_id=OTHER)
    bench.api.named("jobs", f"trainyard-{OTHER}")["metadata"]["labels"] = {"team": "x"}
    for pod in bench.api.pods():
        if OTHER in pod["metadata"]["name"]:
            pod["metadata"]["labels"] = {"team": "x"}
    assert [job.request_id for job in bench.source.list().jobs] == [REQUEST]


def test_status_leaves_out_what_the_cluster_does_not_know(bench: Bench) -> None:
    bench.submit()
    assert [job.request_id for job in bench.source.status([OTHER, REQUEST])] == [REQUEST]
    assert "has no Job" in bench.source.explain(OTHER)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_server_is_called_again(bench: Bench, status: int) -> None:
    bench.submit()
    bench.api.faults.append(Fault("GET .*/pods", times=2, status=status))
    assert bench.only().state == "pending"


@pytest.mark.parametrize(
    "body", [b"<html>gateway</html>", b"[]", b'{"items": [{"metadata": {}}]}', b'{"kind": "List"}']
)
def test_an_answer_that_cannot_be_read_is_an_error(
    bench: Bench, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_api, "RETRY_SECONDS", 0.0)
    bench.submit()
    bench.api.faults.append(Fault("GET .*/jobs", times=99, status=200, body=body))
    with pytest.raises(SourceError) as caught:
        bench.source.list()
    assert not caught.value.refused


def test_no_proxy_leads_to_a_cluster_on_this_machine(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY", "https_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "")  # what a source adds goes with the test
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "[2001:db8::1]")
    source = bench.make()
    assert not source.list().jobs
    monkeypatch.setenv("all_proxy", "socks5://ada:secret@127.0.0.1:9")
    with pytest.raises(ProxyError, match=r"all_proxy='socks5://127\.0\.0\.1:9'"):
        bench.make()


def test_a_slow_server_is_an_error_within_the_limit(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_api, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(cluster_api, "REQUEST_SECONDS", 0.2)
    bench.api.faults.append(Fault("GET", times=99, seconds=60))
    with pytest.raises(SourceError, match="no answer in"):
        bench.source.list()


def test_a_server_that_is_away_is_an_error(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cluster_api, "RETRY_SECONDS", 0.0)
    (tmp_path / "away").mkdir()
    source = bench.make(kubeconfig=str(kubeconfig(tmp_path / "away", "http://127.0.0.1:1")))
    with pytest.raises(SourceError, match=r"list jobs.batch in namespace training"):
        source.list()


def test_a_new_token_is_read_when_the_old_one_is_refused(bench: Bench, tmp_path: Path) -> None:
    bench.submit()
    bench.api.token = "the-next-token"
    path = tmp_path / "kubeconfig"
    path.write_text(path.read_text().replace("the-token", "the-next-token"))
    assert bench.only().state == "pending"


def test_credentials_that_are_refused_need_a_login_where_one_is_configured(bench: Bench) -> None:
    bench.api.token = "another"
    with pytest.raises(SourceError, match="does not accept the credentials") as caught:
        bench.source.list()
    assert not isinstance(caught.value, LoginNeeded)
    with pytest.raises(LoginNeeded) as needed:
        bench.make(login="cloud login").list()
    assert needed.value.command == "cloud login"


def test_an_explanation_has_conditions_and_events(bench: Bench) -> None:
    bench.submit()
    pod = bench.api.pods()[0]
    pod["status"]["containerStatuses"] = [
        {
            "name": "pilot",
            "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}},
        }
    ]
    for number, about in enumerate((bench.job, pod)):
        bench.api.objects["events", f"e{number}"] = {
            "metadata": {"name": f"e{number}", "uid": f"e{number}"},
            "involvedObject": {"uid": about["metadata"]["uid"]},
            "type": "Warning",
            "reason": "FailedScheduling" if number else "SuccessfulCreate",
            "message": f"event {number}",
            "lastTimestamp": "2026-11-23T10:00:00Z",
            "eventTime": None,
        }
    text = bench.source.explain(REQUEST)
    assert f"{NAME}: SuccessfulCreate: event 0" in text
    assert f"{pod['metadata']['name']}: FailedScheduling: event 1" in text
    assert "pilot: ImagePullBackOff: no such image" in text
