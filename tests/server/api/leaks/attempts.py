"""Ways to learn of another project's job."""

from __future__ import annotations

import re

from tests.server.api.leaks.hidden_jobs import Attack

POINTS = {"start": 0, "series": [{"name": "x", "points": [[1, 1.0, 1.0]]}]}


class Attempts:
    """Each method returns what an attacker reads; the name is the way to learn of a hidden job."""

    # ---- by id -------------------------------------------------------------------------------

    def job(self, by: Attack) -> str:
        return by.get(f"/jobs/{by.ids.job}")

    def attempts_of_a_job(self, by: Attack) -> str:
        return by.get(f"/jobs/{by.ids.job}/attempts")

    def events_of_a_job(self, by: Attack) -> str:
        return by.get(f"/jobs/{by.ids.job}/events")

    def requests_of_a_job(self, by: Attack) -> str:
        return by.get(f"/jobs/{by.ids.job}/requests")

    def names_of_series(self, by: Attack) -> str:
        return by.get(f"/jobs/{by.ids.job}/metrics")

    def points_as_csv(self, by: Attack) -> str:
        path = f"/api/v1/jobs/{by.ids.job}/metrics"
        reply = by.client.get(path, headers={"accept": "text/csv"})
        return f"{reply.status_code} {reply.text}"

    def lines_of_a_log(self, by: Attack) -> str:
        return by.get(f"/jobs/{by.ids.job}/logs")

    def text_in_a_log(self, by: Attack) -> str:
        return by.get(f"/jobs/{by.ids.job}/logs/search", text="line")

    def names_of_artifacts(self, by: Attack) -> str:
        return by.get(f"/jobs/{by.ids.job}/artifacts")

    def content_of_an_artifact(self, by: Attack) -> str:
        return by.get(f"/jobs/{by.ids.job}/artifacts/{by.ids.artifact}/content")

    def artifact_by_way_of_an_own_job(self, by: Attack) -> str:
        return by.get(f"/jobs/{by.own_job}/artifacts/{by.ids.artifact}/content")

    def ranks(self, by: Attack) -> str:
        return by.get(f"/jobs/{by.ids.job}/ranks")

    def advice(self, by: Attack) -> str:
        return by.get(f"/jobs/{by.ids.job}/advice")

    def goodput_of_a_job(self, by: Attack) -> str:
        return by.get(f"/jobs/{by.ids.job}/goodput")

    def replay_of_a_job(self, by: Attack) -> str:
        return by.get(f"/jobs/{by.ids.job}/goodput/what-if", interval_steps=5)

    def checkpoints_of_a_job(self, by: Attack) -> str:
        return by.get(f"/jobs/{by.ids.job}/checkpoints")

    def checkpoint(self, by: Attack) -> str:
        return by.get(f"/checkpoints/{by.ids.checkpoint}")

    def sizes_to_resume_on(self, by: Attack) -> str:
        return by.get(f"/jobs/{by.ids.job}/resume-options")

    def place_in_the_queue(self, by: Attack) -> str:
        return by.get(f"/jobs/{by.ids.job}/queue")

    def operation(self, by: Attack) -> str:
        return by.get(f"/operations/{by.ids.operation}")

    def output_of_a_command(self, by: Attack) -> str:
        return by.get(f"/jobs/{by.ids.job}/shells/{by.ids.shell}/output")

    # ---- by a command ------------------------------------------------------------------------

    def stop(self, by: Attack) -> str:
        return by.post(f"/jobs/{by.ids.job}/stop")

    def cancel(self, by: Attack) -> str:
        return by.post(f"/jobs/{by.ids.job}/cancel")

    def priority(self, by: Attack) -> str:
        return by.post(f"/jobs/{by.ids.job}/priority", {"priority": "high"})

    def resume(self, by: Attack) -> str:
        return by.post(f"/jobs/{by.ids.job}/resume", {"dry_run": True, "world_size": 2})

    def deletion_of_a_job(self, by: Attack) -> str:
        return by.send("DELETE", f"/jobs/{by.ids.job}")

    def request_to_a_job(self, by: Attack) -> str:
        return by.post(f"/jobs/{by.ids.job}/requests", {"kind": "save"})

    def command_in_a_job(self, by: Attack) -> str:
        return by.post(f"/jobs/{by.ids.job}/shells", {"argv": ["ls"]})

    def fork(self, by: Attack) -> str:
        return by.post(f"/checkpoints/{by.ids.checkpoint}/fork", {"dry_run": True})

    def verification(self, by: Attack) -> str:
        return by.post(f"/checkpoints/{by.ids.checkpoint}/verify")

    def export(self, by: Attack) -> str:
        return by.post(f"/checkpoints/{by.ids.checkpoint}/export")

    def pin(self, by: Attack) -> str:
        return by.post(f"/checkpoints/{by.ids.checkpoint}/pin")

    def deletion_of_a_checkpoint(self, by: Attack) -> str:
        return by.send("DELETE", f"/checkpoints/{by.ids.checkpoint}")

    def end_of_an_operation(self, by: Attack) -> str:
        return by.post(f"/operations/{by.ids.operation}/cancel")

    def points_of_an_import(self, by: Attack) -> str:
        return by.post(f"/imports/{by.ids.job}/points", POINTS)

    # ---- by a list, a count or a comparison --------------------------------------------------

    def list_of_jobs(self, by: Attack) -> str:
        return by.get("/jobs") + by.get("/jobs", order="active", state=["running", "queued"])

    def search_by_name(self, by: Attack) -> str:
        return by.get("/jobs", search=by.ids.name)

    def search_by_id(self, by: Attack) -> str:
        return by.get("/jobs", search=by.ids.job[:20])

    def search_by_configuration(self, by: Attack) -> str:
        return by.get("/jobs", search=by.ids.word)

    def filter_by_tag(self, by: Attack) -> str:
        return by.get("/jobs", tag=by.ids.tag)

    def filter_by_name(self, by: Attack) -> str:
        return by.get("/jobs", name=by.ids.name)

    def filter_by_project(self, by: Attack) -> str:
        return by.get("/jobs", project=by.ids.project)

    def filter_by_owner(self, by: Attack) -> str:
        return by.get("/jobs", owner=by.ids.owner)

    def count_by_name(self, by: Attack) -> str:
        return by.get("/jobs/counts", name=by.ids.name)

    def count_by_project(self, by: Attack) -> str:
        return by.get("/jobs/counts", project=by.ids.project)

    def list_of_operations(self, by: Attack) -> str:
        return by.get("/operations")

    def operations_of_a_job(self, by: Attack) -> str:
        return by.get("/operations", job=by.ids.job)

    def operations_on_a_checkpoint(self, by: Attack) -> str:
        return by.get("/operations", checkpoint=by.ids.checkpoint)

    def comparison_of_metrics(self, by: Attack) -> str:
        return by.get("/metrics/compare", jobs=f"{by.own_job},{by.ids.job}", names="secret/series")

    def comparison_of_facts(self, by: Attack) -> str:
        return by.get("/facts/compare", jobs=f"{by.own_job},{by.ids.job}")

    def goodput_of_the_cluster(self, by: Attack) -> str:
        return by.get("/goodput")

    def goodput_of_a_project(self, by: Attack) -> str:
        found = re.search(r'"slot_milliseconds":\d+', by.get("/goodput", project=by.ids.project))
        return found[0] if found else ""

    def list_of_projects(self, by: Attack) -> str:
        return by.get("/projects")

    def project(self, by: Attack) -> str:
        return by.get(f"/projects/{by.ids.project}")

    def members_of_a_project(self, by: Attack) -> str:
        return by.get(f"/projects/{by.ids.project}/members")

    # ---- by what other jobs cause ------------------------------------------------------------

    def entries_of_the_queue(self, by: Attack) -> str:
        return by.get("/queue")

    def reason_of_an_own_job(self, by: Attack) -> str:
        return by.get(f"/jobs/{by.own_queued}") + by.get("/jobs", state="queued")

    def holders_of_slots(self, by: Attack) -> str:
        return by.get("/nodes")

    def forecast_for_another_job(self, by: Attack) -> str:
        spec = {"project": "ours", "resources": {"world_size": 2}}
        return re.sub(r"\d{4}-\d\d-\d\dT[^\"]*", "", by.post("/queue/what-if", spec))

    def forks_of_an_own_checkpoint(self, by: Attack) -> str:
        return by.get(f"/checkpoints/{by.own_checkpoint}")

    def guard_of_an_own_checkpoint(self, by: Attack) -> str:
        return by.send("DELETE", f"/checkpoints/{by.own_checkpoint}")

    # ---- by a reference in a body ------------------------------------------------------------

    def pack(self, by: Attack) -> str:
        return by.get(f"/packs/{by.ids.pack}")

    def pack_of_a_spec(self, by: Attack) -> str:
        program = {"command": ["x.py"], "code": {"pack": by.ids.pack}}
        return by.post("/jobs/plan", {"project": "ours", "program": program})

    def pack_of_a_submission(self, by: Attack) -> str:
        program = {"command": ["x.py"], "code": {"pack": by.ids.pack}}
        reply = by.post("/jobs", {"project": "ours", "program": program})
        return reply[:3] + (reply[3:] if reply.startswith("4") else "")

    def place_of_a_checkpoint(self, by: Attack) -> str:
        start = by.ids.checkpoint.replace(".", "/")
        return by.post("/jobs/plan", {"project": "ours", "checkpoint": {"start_from": start}})

    def files_of_a_hidden_job(self, by: Attack) -> str:
        folder = by.ids.checkpoint.replace(".", "/")
        place = f"checkpoints:{folder}/hugging_face"
        found = by.post("/jobs", {"project": "ours", "data": {"path": place}})
        return found[:3] + (found[3:] if found.startswith("4") else "")

    def exported_weights(self, by: Attack) -> str:
        place = f"checkpoints:exports/{by.ids.checkpoint}-bfloat16"
        spec = {"project": "ours", "model": {"initial_weights": place}}
        return by.post("/jobs/plan", spec) + by.post("/queue/what-if", spec)

    def files_of_a_hidden_job_in_a_fork(self, by: Attack) -> str:
        place = f"checkpoints:{by.ids.job}/corpus"
        body = {"dry_run": True, "changes": {"data": {"path": place}}}
        return by.post(f"/checkpoints/{by.own_checkpoint}/fork", body)

    def checkpoint_to_resume_from(self, by: Attack) -> str:
        body = {"dry_run": True, "checkpoint_id": by.ids.checkpoint}
        return by.post(f"/jobs/{by.own_job}/resume", body) + by.get(
            f"/checkpoints/{by.ids.checkpoint}"
        )

    def project_of_a_spec(self, by: Attack) -> str:
        return by.post("/jobs/plan", {"project": by.ids.project})

    def project_of_a_submission(self, by: Attack) -> str:
        reply = by.post("/jobs", {"project": by.ids.project})
        return reply[:3] + (reply[3:] if reply.startswith("4") else "")

    def project_of_a_fork(self, by: Attack) -> str:
        body = {"dry_run": True, "changes": {"project": by.ids.project}}
        return by.post(f"/checkpoints/{by.own_checkpoint}/fork", body)

    def digest_of_an_import(self, by: Attack) -> str:
        body = {
            "run": {"tool": "wandb", "run_id": "x", "digest": by.ids.run, "points": 0},
            "name": "mine",
            "project": by.ids.project,
            "state": "succeeded",
            "start_time": 1.7e9,
            "seconds": 1.0,
            "last_step": 1,
        }
        return by.post("/imports", body)
