from __future__ import annotations
import json, itertools, random, time
import pytest
from fastapi import FastAPI
from tests.server.api.test_workers import *
from tests.server.reports import json_lines, chunk

HUGE = [10**9, 2**31, 2**63-1, 2**63, 10**30, 10**400, 1e300, 1e308, -1, -1e300, "NaN", "Infinity", "-Infinity", 0]
TEXTS = ["\x00", "a\x00b", "\ud800", "x"*100000, "é" * 300, "\u202e", "", "💥"*50, "../..", "a\nb"]

def paths(value, prefix=()):
    if isinstance(value, dict):
        for k, v in value.items():
            yield from paths(v, (*prefix, k))
    elif isinstance(value, list) and value:
        yield from paths(value[0], (*prefix, 0))
    yield prefix, value

def put(value, path, new):
    value = json.loads(json.dumps(value))
    if not path: return new
    at = value
    for p in path[:-1]: at = at[p]
    at[path[-1]] = new
    return value

SAMPLE = {"host": {"load": 1.0, "memory_bytes": 1, "memory_used_bytes": 1, "disks": [{"name": "data_dir", "total_bytes": 1, "free_bytes": 2**40}]},
 "accelerators": [{"uuid": "GPU-1", "utilization_ratio": .5, "memory_used_bytes": 1, "power_watts": 1.0, "temperature_celsius": 1.0, "sm_clock_hertz": 1, "memory_clock_hertz": 1, "throttle_reasons": ["x"], "nvlink_errors": 1, "pcie_replays": 1, "ecc_corrected": 1, "ecc_uncorrected": 1, "ecc_corrected_lifetime": 1, "ecc_uncorrected_lifetime": 1, "row_remap_pending": True, "row_remap_failed": False, "xids": [{"code": 13, "age_seconds": 3.0}], "foreign": [{"pid": 1, "memory_bytes": 1, "user": "u", "command": "c"}]}],
 "problems": ["p"]}
HW = HARDWARE | {"device": "cuda", "slots": 1, "driver": "1", "accelerators": [{"index": 0, "uuid": "GPU-1", "name": "H", "memory_bytes": 1, "pci_address": "a", "parent": None, "listed": True}]}

def send(client, path, body):
    text = json.dumps(body)
    try:
        return client.post(path, content=text.encode("utf-8", "surrogatepass"), headers={"content-type": "application/json"})
    except Exception as e:
        class R: status_code=599; text=repr(e)[:200]
        return R

def variants(body):
    for path, value in paths(body):
        for new in [*HUGE, *TEXTS, None, [], {}]:
            yield path, new, put(body, path, new)

def check_reads(client, bad, what):
    for url in ("/api/v1/nodes", "/api/v1/nodes/gpu-01", "/api/v1/nodes/gpu-01/metrics", "/api/v1/queue", "/api/v1/projects", "/metrics", "/api/v1/jobs", "/api/v1/goodput"):
        r = client.get(url)
        if r.status_code >= 500:
            bad.append((what, url, r.status_code, r.text[:100]))

def test_nodes(app: FastAPI, context: Context, client: TestClient, harness: Harness) -> None:
    from server.scheduling.loop import Scheduler
    from server.scheduling.leader import Leader
    from server.liveness import beat
    s = Scheduler(harness.context, harness.dispatcher, Leader(harness.context.database))
    node = joined(app, context, hardware=HW)
    bad = []
    n = 0
    job = harness.submit()
    def tick(what):
        harness.clock.advance(6); beat(context)
        try: s.tick()
        except Exception as e: bad.append((what, "TICK", repr(e.exceptions)[:300]))
    hb = {"protocol": 3, "node": "gpu-01", "supervised": ["a"], "worker": WORKER.model_dump(), "gone": ["b"], "notice": None, "sample": SAMPLE, "clock": {"skew_seconds": 0.0, "error_seconds": .1}}
    reg = registration(hardware=HW, labels={"zone": "a"})
    for url, body in ((f"{WORKERS}/heartbeat", hb), (f"{WORKERS}/register", reg)):
        for path, new, variant in variants(body):
            if path and path[0] == "clock" and new in (10**9, 2**31): pass
            r = send(node, url, variant)
            n += 1
            if r.status_code >= 500:
                bad.append((url[-9:], path, str(new)[:20], r.status_code, r.text[:80]))
            elif r.status_code == 200:
                what = (url[-9:], path, str(new)[:20])
                check_reads(client, bad, what)
                tick(what)
                send(node, f"{WORKERS}/register", reg)
                send(node, f"{WORKERS}/heartbeat", hb)
                with context.database.write() as c:
                    from sqlalchemy import text
                    c.execute(text("update nodes set drain=null")); c.execute(text("delete from node_points"))
    print(n, len(bad))
    for b in bad: print(b)
