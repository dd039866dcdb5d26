"""Which tests start whole programs, browsers or trainings, and what each of them adds.

`make test` leaves them out and takes some minutes. `make test-ci` runs those of `INTEGRATION` in
each landing, and those of `DEEP` in turns and where the change reaches them (tests/gate/turns.py).
A new test of such a kind belongs to one of these places. A single test or parameter has the marks
itself: those of the server on PostgreSQL have them, and `make test` runs the others on SQLite.
"""

INTEGRATION = {
    "tests/e2e": "a control plane with its workers and trainers, and what breaks between them",
    "tests/trainer/test_exactness.py": "runs through layouts, against one that never stopped",
    "tests/trainer/test_failures.py": "runs that end at a fault, with its reason",
}
"""Folders and files, from the root of the project: what a job goes through in each landing."""

DEEP = {
    "tests/benchmarks": "each program of benchmarks, at its smallest size",
    "tests/e2e/own_planes": "the whole product with settings of its own",
    "tests/e2e/test_artifacts.py": "artifacts while the server dies",
    "tests/e2e/test_event_files.py": "event files of a script",
    "tests/e2e/test_example_programs.py": "each example program, stopped and resumed",
    "tests/e2e/test_parts_die.py": "each part that dies while a job trains",
    "tests/e2e/test_program_checkpoints.py": "a program's checkpoints, to its resume",
    "tests/e2e/test_rollback.py": "a job that goes back to before a bad step",
    "tests/e2e/test_run_directories.py": "a run directory that is gone",
    "tests/e2e/test_scripts.py": "a script that logs while the server dies",
    "tests/examples": "the example programs, as a person starts them",
    "tests/library/adapters": "the adapters inside of other libraries' own trainers",
    "tests/library/cli/commands/test_shell.py": "a terminal, from a person to a rank and back",
    "tests/library/planner/test_memory_of_the_trainer.py": "memory of steps that run",
    "tests/objects/test_checkpoints.py": "checkpoints in a bucket, in runs",
    "tests/provisioner/test_provisioner.py": "a provisioner as a process",
    "tests/provisioner/test_slurm.py": "pilots that commands of a Slurm start, as processes",
    "tests/server/api/test_process.py": "the API as a process: start, signals, exit codes",
    "tests/server/api/test_schemathesis.py": "generated requests to every operation",
    "tests/server/api/test_two_servers.py": "two servers of one database",
    "tests/server/database": "types, upserts, isolation and every migration, on both databases",
    "tests/server/scheduling/test_takeover.py": "a scheduler that dies, and the next one",
    "tests/trainer/checkpoint/test_choice_of_writers.py": "each choice of writers, in runs",
    "tests/trainer/data/test_exactness.py": "the data on each pair of numbers of ranks",
    "tests/trainer/hugging_face/test_export.py": "exports of checkpoints of every layout",
    "tests/trainer/loop/test_background_saves.py": "saves during the steps of a run",
    "tests/trainer/loop/test_kernel_cache.py": "kernels that a C++ compiler has built",
    "tests/trainer/loop/test_kills.py": "a run that is killed at each point of a save",
    "tests/trainer/loop/test_optimizer_runs.py": "each way of keeping optimizer state, in runs",
    "tests/trainer/loop/test_preflight.py": "the first save of a run, during its first step",
    "tests/trainer/loop/test_resume.py": "runs that continue on other ranks and settings",
    "tests/trainer/loop/test_stop_deadline.py": "runs that are stopped with little time left",
    "tests/trainer/loop/test_storage_faults.py": "runs whose storage fails",
    "tests/trainer/loop/test_validation.py": "validation on every layout",
    "tests/trainer/metrics/test_loss_guard.py": "runs that leave out a spike of the loss",
    "tests/trainer/metrics/test_profiler.py": "profiles of steps of a run",
    "tests/trainer/metrics/test_rank_times.py": "a slow rank among others, in a run",
    "tests/trainer/models/own/test_data_dependence.py": "branches of own models on every layout",
    "tests/trainer/models/own/test_parallel_plans.py": "own models on every layout",
    "tests/trainer/numerics": "the numbers of every layout, against one rank",
    "tests/trainer/operations/test_export_and_sample.py": "exports and samples of a checkpoint",
    "tests/trainer/operations/test_operations.py": "checkpoints of runs, verified and deleted",
    "tests/trainer/parallel/test_cp.py": "context parallelism on its ranks",
    "tests/trainer/parallel/test_parallelize.py": "each dimension of a layout on its ranks",
    "tests/trainer/parallel/test_pipeline.py": "every schedule of a pipeline on its ranks",
    "tests/trainer/parallel/test_quantize.py": "each recipe of float8 on every layout, in runs",
    "tests/trainer/parallel/test_tp.py": "tensor parallelism on its ranks",
    "tests/trainer/test_layout_chain.py": "one job through every kind of layout",
    "tests/trainer/test_presets.py": "a small twin of each preset, in a run",
    "tests/trainer/test_sample.py": "a model that has learned enough to write",
    "tests/trainer/test_torchrun.py": "launches by torchrun, and signals to them",
    "tests/trainer/test_world_sizes.py": "one job through every number of ranks",
    "tests/web": "the dashboard in a browser",
    "tests/worker/inbox/test_polls.py": "a worker without a broker, as a process",
    "tests/worker/launchers": "every launcher, with processes of its own",
    "tests/worker/node/hardware/test_nvml.py": "an NVML that a compiler has built",
    "tests/worker/node/test_users_of_attempts.py": "attempts with users of their own",
    "tests/worker/pilot": "a pilot as a process of Slurm or Kubernetes",
    "tests/worker/supervisor/test_failure_records.py": "what each failure leaves",
    "tests/worker/supervisor/test_hang.py": "ranks that hang, as processes",
    "tests/worker/supervisor/test_supervisor.py": "attempts with trainers as processes",
    "tests/worker/test_adopt.py": "supervisors that a new worker finds",
    "tests/worker/test_worker.py": "a worker as a process, its death and its return",
    "tests/worker/warm": "ranks that an idle process has forked",
}
"""Folders and files: one part of the product on every layout, in every form, at every fault."""

ON_POSTGRESQL = {
    "tests/server/api/test_group_commit.py": "requests that share a transaction",
    "tests/server/attempts/test_claims_together.py": "statements, whose number differs by dialect",
    "tests/server/artifacts/test_uploads.py": "uploads that race",
    "tests/server/events/test_notices.py": "commits in the order of an advisory lock",
    "tests/server/ingest/test_ingest.py": "copies of a report that race",
    "tests/server/ingest/test_reports_together.py": "reports that share a transaction",
    "tests/server/jobs/test_jobs.py": "locks, and numbers of statements",
    "tests/server/jobs/test_submissions_together.py": "numbers of statements",
    "tests/server/packs/test_packs.py": "uploads that race",
    "tests/server/scheduling/test_leader.py": "a lead that is taken over",
    "tests/server/scheduling/test_lock_order.py": "locks of rows",
    "tests/server/scheduling/test_races.py": "transactions that race",
}
"""Files whose tests run on PostgreSQL in each landing: it locks and isolates as no SQLite does."""
