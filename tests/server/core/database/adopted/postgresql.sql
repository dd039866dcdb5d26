CREATE TABLE public.alembic_version (
    version_num character varying(32) NOT NULL
);
CREATE TABLE public.artifact_blocks (
    content_id character varying(26) NOT NULL,
    number integer NOT NULL,
    content bytea NOT NULL
);
CREATE TABLE public.artifact_contents (
    id character varying(26) NOT NULL,
    job_id character varying(26),
    digest character varying(71) NOT NULL,
    size bigint NOT NULL,
    stored bigint NOT NULL,
    complete boolean NOT NULL,
    media_type character varying(40),
    touched_at timestamp with time zone NOT NULL
);
CREATE TABLE public.artifacts (
    id character varying(26) NOT NULL,
    job_id character varying(26) NOT NULL,
    attempt integer NOT NULL,
    process integer,
    kind character varying(64) NOT NULL,
    name character varying(200) NOT NULL,
    step bigint,
    caption text NOT NULL,
    "time" double precision NOT NULL,
    content_id character varying(26),
    histogram text
);
CREATE TABLE public.attempt_nodes (
    attempt_id character varying(26) NOT NULL,
    node character varying(100) NOT NULL,
    node_rank integer NOT NULL,
    slots text NOT NULL,
    state character varying(16) NOT NULL,
    outcome character varying(16),
    failure text,
    token_hash character varying(64),
    identity text,
    sent_at timestamp with time zone,
    claimed_at timestamp with time zone,
    last_report_at timestamp with time zone,
    unreachable_since timestamp with time zone,
    exit text,
    worker text,
    lost_at timestamp with time zone,
    spare_since timestamp with time zone,
    acknowledged text DEFAULT '{}'::text NOT NULL,
    CONSTRAINT ck_attempt_nodes_state CHECK (((state)::text = ANY ((ARRAY['placed'::character varying, 'claimed'::character varying, 'running'::character varying, 'spare'::character varying, 'ended'::character varying])::text[])))
);
CREATE TABLE public.attempts (
    id character varying(26) NOT NULL,
    job_id character varying(26) NOT NULL,
    number integer NOT NULL,
    cause character varying(16) NOT NULL,
    actor character varying(100) NOT NULL,
    state character varying(16) NOT NULL,
    desired character varying(8) NOT NULL,
    outcome character varying(16),
    failure text,
    layout text NOT NULL,
    overrides text NOT NULL,
    micro_batch_size integer NOT NULL,
    parent_checkpoint_id character varying(200),
    start_step integer NOT NULL,
    last_step integer NOT NULL,
    rendezvous_port integer NOT NULL,
    provenance text,
    continuity text,
    created_at timestamp with time zone NOT NULL,
    started_at timestamp with time zone,
    ended_at timestamp with time zone,
    skip text DEFAULT '[]'::text NOT NULL,
    preempted text,
    save_failed text,
    allow_code_change boolean DEFAULT false NOT NULL,
    parent_named boolean DEFAULT false NOT NULL,
    device character varying(8) DEFAULT 'cpu'::character varying NOT NULL,
    rank_times text,
    ordered_at timestamp with time zone,
    check_network boolean DEFAULT false NOT NULL,
    tainted boolean DEFAULT true NOT NULL,
    pace_digest character varying(64),
    expected_end_at timestamp with time zone,
    gives_way boolean DEFAULT false NOT NULL,
    runs_until timestamp with time zone,
    CONSTRAINT ck_attempts_desired CHECK (((desired)::text = ANY ((ARRAY['run'::character varying, 'stop'::character varying, 'cancel'::character varying])::text[]))),
    CONSTRAINT ck_attempts_state CHECK (((state)::text = ANY ((ARRAY['placed'::character varying, 'starting'::character varying, 'running'::character varying, 'stopping'::character varying, 'ended'::character varying])::text[])))
);
CREATE TABLE public.calibrations (
    device character varying(8) NOT NULL,
    device_name character varying(200) NOT NULL,
    fitted text NOT NULL,
    fitted_at timestamp with time zone NOT NULL
);
CREATE TABLE public.capacity_changes (
    node character varying(100) NOT NULL,
    since timestamp with time zone NOT NULL,
    slots integer NOT NULL,
    online boolean NOT NULL,
    takes_jobs boolean NOT NULL,
    withheld integer NOT NULL
);
CREATE TABLE public.checkpoints (
    id character varying(200) NOT NULL,
    job_id character varying(26) NOT NULL,
    attempt_id character varying(26) NOT NULL,
    attempt integer NOT NULL,
    step integer NOT NULL,
    kind character varying(16) NOT NULL,
    root character varying(32) NOT NULL,
    path character varying(500) NOT NULL,
    size bigint NOT NULL,
    files integer NOT NULL,
    layout character varying(100) NOT NULL,
    save_seconds double precision NOT NULL,
    parent_id character varying(200),
    metadata_digest character varying(32) NOT NULL,
    manifest text NOT NULL,
    created_at timestamp with time zone NOT NULL,
    verified boolean,
    checked_at timestamp with time zone,
    verification text,
    pinned_at timestamp with time zone,
    pinned_by character varying(100),
    deleting_since timestamp with time zone,
    stall_seconds double precision,
    writers integer,
    write_seconds double precision,
    dtype character varying(16)
);
CREATE TABLE public.config_words (
    word character varying(200) NOT NULL,
    job_id character varying(26) NOT NULL
);
CREATE TABLE public.deleted_notices (
    id integer NOT NULL,
    last_seq bigint NOT NULL
);
CREATE TABLE public.demands (
    key character varying(64) NOT NULL,
    shape text NOT NULL,
    reason text,
    slots integer NOT NULL
);
CREATE TABLE public.events (
    id bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    kind character varying(40) NOT NULL,
    job_id character varying(26),
    attempt integer,
    node character varying(100),
    actor character varying(100) NOT NULL,
    message text NOT NULL,
    data text NOT NULL
);
CREATE SEQUENCE public.events_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.events_id_seq OWNED BY public.events.id;
CREATE TABLE public.failed_logins (
    address character varying(100) NOT NULL,
    begin_at timestamp with time zone NOT NULL,
    failures integer NOT NULL
);
CREATE TABLE public.holdings (
    attempt_id character varying(26) NOT NULL,
    node character varying(100) NOT NULL,
    job_id character varying(26) NOT NULL,
    job_name character varying(80) NOT NULL,
    project character varying(80) NOT NULL,
    attempt integer NOT NULL,
    slots integer NOT NULL,
    since timestamp with time zone NOT NULL,
    until timestamp with time zone NOT NULL,
    spent text,
    spare boolean DEFAULT false NOT NULL
);
CREATE TABLE public.idempotency_keys (
    actor character varying(100) NOT NULL,
    key character varying(200) NOT NULL,
    request_digest character varying(64) NOT NULL,
    job_id character varying(26) NOT NULL,
    created_at timestamp with time zone NOT NULL
);
CREATE TABLE public.imports (
    job_id character varying(26) NOT NULL,
    digest character varying(71) NOT NULL,
    run text NOT NULL,
    reason text NOT NULL,
    received bigint NOT NULL
);
CREATE TABLE public.job_facts (
    job_id character varying(26) NOT NULL,
    facts text NOT NULL
);
CREATE TABLE public.job_packs (
    job_id character varying(26) NOT NULL,
    pack_id character varying(26) NOT NULL
);
CREATE TABLE public.jobs (
    id character varying(26) NOT NULL,
    name character varying(80) NOT NULL,
    tags text NOT NULL,
    spec text NOT NULL,
    spec_digest character varying(64) NOT NULL,
    state character varying(16) NOT NULL,
    desired character varying(8) NOT NULL,
    reason text,
    priority integer NOT NULL,
    pending text,
    queued_at timestamp with time zone,
    not_before timestamp with time zone,
    attempt integer NOT NULL,
    retries_used integer NOT NULL,
    world_size integer NOT NULL,
    layout character varying(100) NOT NULL,
    storage character varying(64),
    progress text NOT NULL,
    created_by character varying(100) NOT NULL,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    started_at timestamp with time zone,
    ended_at timestamp with time zone,
    forked_from character varying(200),
    fork_parts text,
    fork_step integer,
    demand character varying(64),
    env text,
    project character varying(80) DEFAULT 'default'::character varying NOT NULL,
    lasts_seconds double precision,
    lasts_on character varying(8),
    min_world_size integer,
    max_world_size integer,
    size_change text,
    chosen text,
    spare_nodes integer DEFAULT 0 NOT NULL,
    spare_slots integer DEFAULT 0 NOT NULL,
    preemptible boolean DEFAULT true NOT NULL,
    imported_from character varying(16),
    token_id character varying(26),
    pace_digest character varying(64),
    lasts_on_name text,
    max_runtime_seconds double precision,
    leave_seconds double precision,
    CONSTRAINT ck_jobs_desired CHECK (((desired)::text = ANY ((ARRAY['run'::character varying, 'stop'::character varying, 'cancel'::character varying])::text[]))),
    CONSTRAINT ck_jobs_state CHECK (((state)::text = ANY ((ARRAY['queued'::character varying, 'starting'::character varying, 'running'::character varying, 'stopping'::character varying, 'succeeded'::character varying, 'failed'::character varying, 'stopped'::character varying, 'cancelled'::character varying])::text[])))
);
CREATE TABLE public.leaders (
    name character varying(40) NOT NULL,
    holder character varying(255),
    epoch bigint NOT NULL,
    expires_at timestamp with time zone
);
CREATE TABLE public.liveness (
    id integer NOT NULL,
    beat_at timestamp with time zone NOT NULL,
    up_since timestamp with time zone NOT NULL
);
CREATE TABLE public.log_blocks (
    attempt_id character varying(26) NOT NULL,
    rank integer NOT NULL,
    first_line bigint NOT NULL,
    lines integer NOT NULL,
    size integer NOT NULL,
    content bytea NOT NULL
);
CREATE TABLE public.logs (
    attempt_id character varying(26) NOT NULL,
    rank integer NOT NULL,
    lines bigint NOT NULL,
    stored_bytes bigint NOT NULL,
    dropped_bytes bigint NOT NULL,
    first_error_line bigint,
    partial bytea,
    partial_size bigint NOT NULL
);
CREATE TABLE public.measured_runs (
    attempt_id character varying(26) NOT NULL,
    device character varying(8) NOT NULL,
    device_name character varying(200) NOT NULL,
    ended_at timestamp with time zone NOT NULL,
    run text NOT NULL,
    job_id character varying(26),
    submitter character varying(100),
    node character varying(100)
);
CREATE TABLE public.metric_chunks (
    series_id bigint NOT NULL,
    first_step bigint NOT NULL,
    last_step bigint NOT NULL,
    count integer NOT NULL,
    non_finite integer NOT NULL,
    min double precision,
    max double precision,
    last double precision,
    steps bytea,
    times bytea NOT NULL,
    numbers bytea NOT NULL,
    step_sum double precision
);
CREATE TABLE public.metric_series (
    id bigint NOT NULL,
    attempt_id character varying(26) NOT NULL,
    name character varying(268) NOT NULL,
    last_step bigint NOT NULL,
    tail integer NOT NULL
);
CREATE SEQUENCE public.metric_series_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.metric_series_id_seq OWNED BY public.metric_series.id;
CREATE TABLE public.metric_tails (
    series_id bigint NOT NULL,
    last_step bigint NOT NULL,
    first_step bigint NOT NULL,
    points bytea NOT NULL
);
CREATE TABLE public.node_points (
    node character varying(100) NOT NULL,
    seconds integer NOT NULL,
    start bigint NOT NULL,
    data text NOT NULL
);
CREATE TABLE public.node_requests (
    id character varying(26) NOT NULL,
    source character varying(31) NOT NULL,
    purpose character varying(8) NOT NULL,
    state character varying(16) NOT NULL,
    nodes integer NOT NULL,
    seconds double precision,
    shape text NOT NULL,
    caused_by text NOT NULL,
    by_person boolean NOT NULL,
    claimed_at timestamp with time zone,
    sent_at timestamp with time zone,
    sends integer DEFAULT 0 NOT NULL,
    cancel_at timestamp with time zone,
    ask character varying(8),
    ref character varying(200),
    engine_state character varying(16) DEFAULT 'unknown'::character varying NOT NULL,
    unknown_since timestamp with time zone,
    reason text DEFAULT ''::text NOT NULL,
    explanation text,
    starts_at timestamp with time zone,
    ends_at timestamp with time zone,
    results text,
    created_at timestamp with time zone NOT NULL,
    started_at timestamp with time zone,
    ended_at timestamp with time zone,
    CONSTRAINT ck_node_requests_state CHECK (((state)::text = ANY ((ARRAY['wanted'::character varying, 'pending'::character varying, 'running'::character varying, 'leaving'::character varying, 'ended'::character varying])::text[])))
);
CREATE TABLE public.nodes (
    name character varying(100) NOT NULL,
    address character varying(255) NOT NULL,
    hardware text NOT NULL,
    device character varying(8) NOT NULL,
    slots integer NOT NULL,
    roots text NOT NULL,
    version character varying(50) NOT NULL,
    registered_at timestamp with time zone NOT NULL,
    heartbeat_at timestamp with time zone NOT NULL,
    offline_since timestamp with time zone,
    drain text,
    notice text,
    worker text,
    protocol integer DEFAULT 2 NOT NULL,
    sample text,
    partitions text DEFAULT '[]'::text NOT NULL,
    worker_labels text DEFAULT '{}'::text NOT NULL,
    set_labels text DEFAULT '{}'::text NOT NULL,
    withheld text DEFAULT '{}'::text NOT NULL,
    trusted_since timestamp with time zone,
    clock_skew_seconds double precision,
    clock_is_wrong boolean DEFAULT false NOT NULL,
    network_checked_at timestamp with time zone,
    inbox character varying(8) DEFAULT 'broker'::character varying NOT NULL,
    request_id character varying(26),
    ends_at timestamp with time zone
);
CREATE TABLE public.notices (
    job_id character varying(26) NOT NULL,
    kind character varying(40) NOT NULL,
    part character varying(200) NOT NULL,
    seq bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    attempt integer,
    node character varying(100),
    data text NOT NULL
);
CREATE TABLE public.operations (
    id character varying(26) NOT NULL,
    kind character varying(16) NOT NULL,
    state character varying(16) NOT NULL,
    job_id character varying(26) NOT NULL,
    job_name character varying(80) NOT NULL,
    checkpoint_id character varying(200),
    actor character varying(100) NOT NULL,
    reason text NOT NULL,
    task text NOT NULL,
    storage character varying(64),
    node character varying(100),
    fence integer NOT NULL,
    sent_at timestamp with time zone,
    given_at timestamp with time zone,
    waiting text,
    awaited_since timestamp with time zone,
    last_report_at timestamp with time zone,
    progress text,
    outcome text,
    created_at timestamp with time zone NOT NULL,
    started_at timestamp with time zone,
    ended_at timestamp with time zone,
    failing text,
    not_before timestamp with time zone,
    CONSTRAINT ck_operations_state CHECK (((state)::text = ANY ((ARRAY['queued'::character varying, 'running'::character varying, 'succeeded'::character varying, 'failed'::character varying, 'cancelled'::character varying])::text[])))
);
CREATE TABLE public.pack_blocks (
    pack_id character varying(26) NOT NULL,
    number integer NOT NULL,
    content bytea NOT NULL
);
CREATE TABLE public.packs (
    id character varying(26) NOT NULL,
    digest character varying(71),
    size bigint NOT NULL,
    created_by character varying(100) NOT NULL,
    named_at timestamp with time zone NOT NULL,
    token_id character varying(26)
);
CREATE TABLE public.periodic_tasks (
    name character varying(80) NOT NULL,
    stored_at timestamp with time zone NOT NULL,
    runs integer NOT NULL,
    failures integer NOT NULL,
    seconds double precision NOT NULL,
    lag_seconds double precision NOT NULL
);
CREATE TABLE public.pilots (
    request_id character varying(26) NOT NULL,
    number integer NOT NULL,
    secret_hash character varying(64) NOT NULL,
    named character varying(200),
    addresses text DEFAULT '[]'::text NOT NULL,
    joined character varying(200),
    gone_at timestamp with time zone
);
CREATE TABLE public.project_usage (
    project character varying(80) NOT NULL,
    month character varying(7) NOT NULL,
    slot_seconds double precision NOT NULL
);
CREATE TABLE public.projects (
    name character varying(80) NOT NULL,
    description text NOT NULL,
    weight double precision NOT NULL,
    max_slots integer,
    slot_hours_per_month double precision,
    created_by character varying(100) NOT NULL,
    created_at timestamp with time zone NOT NULL
);
CREATE TABLE public.rank_progress (
    attempt_id character varying(26) NOT NULL,
    rank integer NOT NULL,
    step bigint NOT NULL
);
CREATE TABLE public.rank_steps (
    attempt_id character varying(26) NOT NULL,
    step bigint NOT NULL,
    staged_at timestamp with time zone NOT NULL,
    data text NOT NULL
);
CREATE TABLE public.requests (
    id character varying(26) NOT NULL,
    attempt_id character varying(26) NOT NULL,
    request text NOT NULL,
    answer text,
    created_at timestamp with time zone NOT NULL
);
CREATE TABLE public.sessions (
    hash character varying(64) NOT NULL,
    token_id character varying(26) NOT NULL,
    created_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone NOT NULL
);
CREATE TABLE public.shells (
    id character varying(26) NOT NULL,
    attempt_id character varying(26) NOT NULL,
    node character varying(100) NOT NULL,
    rank integer,
    argv text NOT NULL,
    terminal text,
    seconds double precision NOT NULL,
    created_by character varying(100) NOT NULL,
    created_at timestamp with time zone NOT NULL,
    client_at timestamp with time zone NOT NULL,
    started_at timestamp with time zone,
    ended_at timestamp with time zone,
    exit_code integer,
    failure text,
    closed boolean NOT NULL,
    output bytea NOT NULL,
    output_start bigint NOT NULL,
    input bytea NOT NULL,
    input_start bigint NOT NULL,
    input_ended boolean NOT NULL,
    token_id character varying(26)
);
CREATE TABLE public.sources (
    name character varying(31) NOT NULL,
    kind character varying(16) NOT NULL,
    shape text NOT NULL,
    limits text NOT NULL,
    request_seconds double precision,
    idle_seconds double precision NOT NULL,
    leave_seconds double precision NOT NULL,
    check_addresses boolean NOT NULL,
    version character varying(50) NOT NULL,
    heard_at timestamp with time zone NOT NULL,
    is_away boolean DEFAULT false NOT NULL,
    listed_at timestamp with time zone,
    error text,
    needs_login text,
    paused_at timestamp with time zone,
    paused_by character varying(100),
    pause_reason text,
    registered_at timestamp with time zone NOT NULL
);
CREATE TABLE public.step_digests (
    attempt_id character varying(26) NOT NULL,
    step bigint NOT NULL,
    digest character varying(32) NOT NULL
);
CREATE TABLE public.stragglers (
    attempt_id character varying(26) NOT NULL,
    rank integer NOT NULL,
    step bigint NOT NULL,
    node character varying(100) NOT NULL,
    slot integer NOT NULL,
    kind character varying(16) NOT NULL,
    factor double precision NOT NULL,
    share double precision NOT NULL,
    found_at timestamp with time zone NOT NULL,
    gone_at timestamp with time zone
);
CREATE TABLE public.tokens (
    id character varying(26) NOT NULL,
    name character varying(100) NOT NULL,
    kind character varying(8) NOT NULL,
    hash character varying(64) NOT NULL,
    node character varying(100),
    created_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone,
    last_used_at timestamp with time zone,
    revoked_at timestamp with time zone,
    source character varying(31)
);
ALTER TABLE ONLY public.events ALTER COLUMN id SET DEFAULT nextval('public.events_id_seq'::regclass);
ALTER TABLE ONLY public.metric_series ALTER COLUMN id SET DEFAULT nextval('public.metric_series_id_seq'::regclass);
INSERT INTO public.alembic_version VALUES ('0059');
INSERT INTO public.attempt_nodes VALUES ('01kdvdna00q3zaqxm7r3303tkx', 'node-1', 0, '[0]', 'ended', 'stopped', NULL, 'eed0a2dcd1ccf314fe5c9f4f5f265f566197d7d7b6ecc58c6d653a078f88f077', '{"boot_id":"boot","pid_namespace":"1","pid":100,"start_time":1}', '2026-01-01 00:00:00+00', '2026-01-01 00:00:00+00', '2026-01-01 00:00:00+00', NULL, '{"outcome": "stopped", "failure": null, "ranks": [], "time": 1767225600.0, "unreported_commit": false}', '{"folder":"00000000000000000000000000000000","boot_id":"b007-0000"}', NULL, NULL, '{}');
INSERT INTO public.attempt_nodes VALUES ('01kdvdna009wpae9s998kr11b8', 'node-2', 0, '[0]', 'running', NULL, NULL, '7b6124240db0eb7f01cda19295eed1147b546b081dc16c1c06cd4e4d09a8d3b4', '{"boot_id":"boot","pid_namespace":"1","pid":100,"start_time":1}', '2026-01-01 00:00:00+00', '2026-01-01 00:00:00+00', '2026-01-01 00:00:00+00', NULL, NULL, '{"folder":"00000000000000000000000000000000","boot_id":"b007-0000"}', NULL, NULL, '{}');
INSERT INTO public.attempts VALUES ('01kdvdna00q3zaqxm7r3303tkx', '01kdvdna00xsshc08bqknprp04', 1, 'submit', 'ada', 'ended', 'stop', 'stopped', NULL, '{"dp_replicate":1,"dp_shard":1,"cp":1,"tp":1,"pp":1}', '{"parallelism":null,"micro_batch_size":null,"cpu_offload":null,"activation_checkpoint":null,"compile":null,"checkpoint":null,"resources":null,"retry":null,"steps":null}', 4, NULL, 0, 9, 23855, NULL, NULL, '2026-01-01 00:00:00+00', '2026-01-01 00:00:00+00', '2026-01-01 00:00:00+00', '[]', NULL, NULL, false, false, 'cpu', NULL, NULL, false, true, NULL, NULL, false, NULL);
INSERT INTO public.attempts VALUES ('01kdvdna009wpae9s998kr11b8', '01kdvdna004tkbtbtrb4853amf', 1, 'submit', 'ada', 'running', 'run', NULL, NULL, '{"dp_replicate":1,"dp_shard":1,"cp":1,"tp":1,"pp":1}', '{"parallelism":null,"micro_batch_size":null,"cpu_offload":null,"activation_checkpoint":null,"compile":null,"checkpoint":null,"resources":null,"retry":null,"steps":null}', 4, NULL, 0, 3, 22208, NULL, NULL, '2026-01-01 00:00:00+00', '2026-01-01 00:00:00+00', NULL, '[]', NULL, NULL, false, false, 'cpu', NULL, NULL, false, false, '44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a', NULL, false, NULL);
INSERT INTO public.checkpoints VALUES ('01kdvdna00xsshc08bqknprp04.a1.step-4', '01kdvdna00xsshc08bqknprp04', '01kdvdna00q3zaqxm7r3303tkx', 1, 4, 'interval', 'checkpoints', '01kdvdna00xsshc08bqknprp04/a1/step-4', 0, 0, '1 rank', 0.1, NULL, 'mmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmm', '{"format_version": 1, "checkpoint_id": "01kdvdna00xsshc08bqknprp04.a1.step-4", "job_id": "01kdvdna00xsshc08bqknprp04", "attempt": 1, "created_at": "2026-01-01T00:00:00Z", "train_state": {"step": 4, "tokens": 8192, "data": {"position": 64, "consumed": 64, "skipped": [], "dataset_digest": "dddddddddddddddddddddddddddddddd"}}, "start": null, "layout": {"dp_replicate": 1, "dp_shard": 1, "cp": 1, "tp": 1, "pp": 1}, "seed": 0, "spec_digest": "5555555555555555555555555555555555555555555555555555555555555555", "spec": {"name": "tiny", "description": "", "tags": [], "program": null, "model": {"family": "llama3", "size": "debug", "factory": null, "code": null, "arguments": {}, "block_classes": [], "plans": [], "initial_weights": null, "dim": null, "n_layers": null, "n_heads": null, "n_kv_heads": null, "ffn_dim": null, "vocab_size": null, "head_dim": null, "tied_embeddings": null, "rope_theta": null, "rope_factor": null, "norm_eps": null, "dropout": 0.0}, "data": {"source": "corpus", "corpus": "python-stdlib", "path": null, "text_field": "text", "split": "train", "tokenizer": "byte", "tokenizer_path": null, "document_masks": false, "max_tokens": null, "validation_fraction": 0.0, "prefetch_batches": 2}, "training": {"steps": 100, "seq_len": 128, "global_batch_size": 16, "micro_batch_size": 4, "seed": 0, "max_grad_norm": 1.0, "param_dtype": "float32", "weight_dtype": "float32", "reduce_dtype": "float32", "log_every_steps": "auto", "gc_freq": 50, "deterministic": false, "tensorboard": false}, "optimizer": {"name": "adamw", "lr": 0.0003, "beta1": 0.9, "beta2": 0.95, "eps": 1e-08, "weight_decay": 0.1, "no_decay": [], "state_dtype": "float32", "cpu_offload": false}, "lr_schedule": {"name": "warmup_stable_decay", "warmup_steps": 10, "warmup_tokens": null, "decay_steps": null, "decay_tokens": null, "decay_shape": "linear", "min_lr_ratio": 0.1, "total_steps": null, "total_tokens": null}, "parallelism": {"dp_replicate": 1, "dp_shard": -1, "reshard_after_forward": "default", "cp": 1, "cp_method": "allgather_kv", "tp": 1, "async_tp": false, "sequence_parallel": true, "loss_parallel": true, "pp": 1, "pp_schedule": "1F1B", "pp_microbatches": null, "pp_layers_per_stage": null, "pp_stage_modules": []}, "activation_checkpoint": {"mode": "none", "memory_budget": 0.5}, "compile": {"enabled": "auto", "backend": "inductor"}, "quantization": {"recipe": "none", "exclude": ["output"], "min_dim": 0}, "checkpoint": {"root": "checkpoints", "interval_steps": "auto", "interval_seconds": "auto", "preflight": true, "async_mode": "auto", "give_up_after_seconds": 3600.0, "writers": "auto", "staging_gib": 4.0, "keep_latest_k": 3, "keep_every_steps": 0, "keep_best_k": 0, "keep_best_metric": "validation/loss"}, "resources": {"world_size": 1, "nodes": null, "device": "auto", "priority": 0}, "retry": {"max_retries": 2, "backoff_seconds": 5.0, "on": ["hang", "node_lost", "preempted", "launch_error", "trainer_error"], "node_lost_after_seconds": 600.0}, "guard": {"non_finite_loss": "stop", "loss_spike": "ignore", "spike_factor": 3.0, "hang_seconds": 600.0}, "validation": {"interval_steps": 0, "batches": 8}, "env": {}}, "code_digest": null, "parent": null, "kind": "interval", "param_dtype": "float32", "model": {"family": "llama3", "size": "debug", "factory": null, "code": null, "arguments": {}, "block_classes": [], "plans": [], "initial_weights": null, "dim": null, "n_layers": null, "n_heads": null, "n_kv_heads": null, "ffn_dim": null, "vocab_size": null, "head_dim": null, "tied_embeddings": null, "rope_theta": null, "rope_factor": null, "norm_eps": null, "dropout": 0.0}, "seq_len": 128, "torch_version": "2.13.0", "save_seconds": 0.1, "files": [], "writers": []}', '2026-01-01 00:00:00+00', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'float32');
INSERT INTO public.checkpoints VALUES ('01kdvdna00xsshc08bqknprp04.a1.step-8', '01kdvdna00xsshc08bqknprp04', '01kdvdna00q3zaqxm7r3303tkx', 1, 8, 'interval', 'checkpoints', '01kdvdna00xsshc08bqknprp04/a1/step-8', 0, 0, '1 rank', 0.1, NULL, 'mmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmm', '{"format_version": 1, "checkpoint_id": "01kdvdna00xsshc08bqknprp04.a1.step-8", "job_id": "01kdvdna00xsshc08bqknprp04", "attempt": 1, "created_at": "2026-01-01T00:00:00Z", "train_state": {"step": 8, "tokens": 16384, "data": {"position": 128, "consumed": 128, "skipped": [], "dataset_digest": "dddddddddddddddddddddddddddddddd"}}, "start": null, "layout": {"dp_replicate": 1, "dp_shard": 1, "cp": 1, "tp": 1, "pp": 1}, "seed": 0, "spec_digest": "5555555555555555555555555555555555555555555555555555555555555555", "spec": {"name": "tiny", "description": "", "tags": [], "program": null, "model": {"family": "llama3", "size": "debug", "factory": null, "code": null, "arguments": {}, "block_classes": [], "plans": [], "initial_weights": null, "dim": null, "n_layers": null, "n_heads": null, "n_kv_heads": null, "ffn_dim": null, "vocab_size": null, "head_dim": null, "tied_embeddings": null, "rope_theta": null, "rope_factor": null, "norm_eps": null, "dropout": 0.0}, "data": {"source": "corpus", "corpus": "python-stdlib", "path": null, "text_field": "text", "split": "train", "tokenizer": "byte", "tokenizer_path": null, "document_masks": false, "max_tokens": null, "validation_fraction": 0.0, "prefetch_batches": 2}, "training": {"steps": 100, "seq_len": 128, "global_batch_size": 16, "micro_batch_size": 4, "seed": 0, "max_grad_norm": 1.0, "param_dtype": "float32", "weight_dtype": "float32", "reduce_dtype": "float32", "log_every_steps": "auto", "gc_freq": 50, "deterministic": false, "tensorboard": false}, "optimizer": {"name": "adamw", "lr": 0.0003, "beta1": 0.9, "beta2": 0.95, "eps": 1e-08, "weight_decay": 0.1, "no_decay": [], "state_dtype": "float32", "cpu_offload": false}, "lr_schedule": {"name": "warmup_stable_decay", "warmup_steps": 10, "warmup_tokens": null, "decay_steps": null, "decay_tokens": null, "decay_shape": "linear", "min_lr_ratio": 0.1, "total_steps": null, "total_tokens": null}, "parallelism": {"dp_replicate": 1, "dp_shard": -1, "reshard_after_forward": "default", "cp": 1, "cp_method": "allgather_kv", "tp": 1, "async_tp": false, "sequence_parallel": true, "loss_parallel": true, "pp": 1, "pp_schedule": "1F1B", "pp_microbatches": null, "pp_layers_per_stage": null, "pp_stage_modules": []}, "activation_checkpoint": {"mode": "none", "memory_budget": 0.5}, "compile": {"enabled": "auto", "backend": "inductor"}, "quantization": {"recipe": "none", "exclude": ["output"], "min_dim": 0}, "checkpoint": {"root": "checkpoints", "interval_steps": "auto", "interval_seconds": "auto", "preflight": true, "async_mode": "auto", "give_up_after_seconds": 3600.0, "writers": "auto", "staging_gib": 4.0, "keep_latest_k": 3, "keep_every_steps": 0, "keep_best_k": 0, "keep_best_metric": "validation/loss"}, "resources": {"world_size": 1, "nodes": null, "device": "auto", "priority": 0}, "retry": {"max_retries": 2, "backoff_seconds": 5.0, "on": ["hang", "node_lost", "preempted", "launch_error", "trainer_error"], "node_lost_after_seconds": 600.0}, "guard": {"non_finite_loss": "stop", "loss_spike": "ignore", "spike_factor": 3.0, "hang_seconds": 600.0}, "validation": {"interval_steps": 0, "batches": 8}, "env": {}}, "code_digest": null, "parent": null, "kind": "interval", "param_dtype": "float32", "model": {"family": "llama3", "size": "debug", "factory": null, "code": null, "arguments": {}, "block_classes": [], "plans": [], "initial_weights": null, "dim": null, "n_layers": null, "n_heads": null, "n_kv_heads": null, "ffn_dim": null, "vocab_size": null, "head_dim": null, "tied_embeddings": null, "rope_theta": null, "rope_factor": null, "norm_eps": null, "dropout": 0.0}, "seq_len": 128, "torch_version": "2.13.0", "save_seconds": 0.1, "files": [], "writers": []}', '2026-01-01 00:00:00+00', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'float32');
INSERT INTO public.deleted_notices VALUES (1, 0);
INSERT INTO public.demands VALUES ('0e558d7b3f4b5f0817981361aee984cf71a9fc16c7811e000fa01552f465690a', '[1,null,"auto",["checkpoints"],null,[],[],[],[],0]', NULL, 1);
INSERT INTO public.events VALUES (1, '2026-01-01 00:00:00+00', 'submitted', '01kdvdna00xsshc08bqknprp04', NULL, NULL, 'ada', 'tiny requests 1 slot as 1 rank', '{"world_size":1,"layout":"1 rank","forked_from":null,"parts":[],"not_exact":[]}');
INSERT INTO public.events VALUES (2, '2026-01-01 00:00:00+00', 'placed', '01kdvdna00xsshc08bqknprp04', 1, NULL, 'scheduler', 'Attempt 1 got 1 slot on node-1', '{"layout":"1 rank","nodes":["node-1"],"spares":[],"parent_checkpoint_id":null,"start_step":0,"backfilled_before":null}');
INSERT INTO public.events VALUES (3, '2026-01-01 00:00:00+00', 'claimed', '01kdvdna00xsshc08bqknprp04', 1, 'node-1', 'node-1', 'node-1 took on 1 slot', '{}');
INSERT INTO public.events VALUES (4, '2026-01-01 00:00:00+00', 'running', '01kdvdna00xsshc08bqknprp04', 1, NULL, 'trainer', 'tiny trains from step 0', '{}');
INSERT INTO public.events VALUES (5, '2026-01-01 00:00:00+00', 'stop_requested', '01kdvdna00xsshc08bqknprp04', 1, NULL, 'ada', 'Save and leave', '{"reason":"","goes_on":false}');
INSERT INTO public.events VALUES (6, '2026-01-01 00:00:00+00', 'node_ended', '01kdvdna00xsshc08bqknprp04', 1, 'node-1', 'node-1', 'the share of node-1 stopped', '{"outcome":"stopped","failure":null}');
INSERT INTO public.events VALUES (7, '2026-01-01 00:00:00+00', 'attempt_ended', '01kdvdna00xsshc08bqknprp04', 1, NULL, 'server', 'Attempt 1 stopped at step 9', '{"outcome":"stopped","failure":null}');
INSERT INTO public.events VALUES (8, '2026-01-01 00:00:00+00', 'job_ended', '01kdvdna00xsshc08bqknprp04', 1, NULL, 'server', 'tiny stopped', '{"state":"stopped","reason":null}');
INSERT INTO public.events VALUES (9, '2025-12-31 23:59:55+00', 'operation_queued', '01kdvdna00xsshc08bqknprp04', NULL, NULL, 'ada', 'verify 01kdvdna00xsshc08bqknprp04.a1.step-8', '{"operation_id":"00000000000000000000000000","kind":"verify","checkpoint_id":"01kdvdna00xsshc08bqknprp04.a1.step-8","reason":"the text {\"chore_id\":\"x\"} is no key"}');
INSERT INTO public.events VALUES (10, '2025-12-31 23:59:55+00', 'operation_waiting', '01kdvdna00xsshc08bqknprp04', NULL, NULL, 'ada', 'verify 01kdvdna00xsshc08bqknprp04.a1.step-8', '{"operation_id":"00000000000000000000000000","kind":"verify","checkpoint_id":"01kdvdna00xsshc08bqknprp04.a1.step-8","waiting":"no node is online"}');
INSERT INTO public.events VALUES (11, '2025-12-31 23:59:55+00', 'operation_started', '01kdvdna00xsshc08bqknprp04', NULL, NULL, 'ada', 'verify 01kdvdna00xsshc08bqknprp04.a1.step-8', '{"operation_id":"00000000000000000000000000","kind":"verify","checkpoint_id":"01kdvdna00xsshc08bqknprp04.a1.step-8","fence":1}');
INSERT INTO public.events VALUES (12, '2025-12-31 23:59:55+00', 'operation_progress', '01kdvdna00xsshc08bqknprp04', NULL, NULL, 'ada', 'verify 01kdvdna00xsshc08bqknprp04.a1.step-8', '{"operation_id":"00000000000000000000000000","kind":"verify","checkpoint_id":"01kdvdna00xsshc08bqknprp04.a1.step-8","progress":{"doing":"reads","done":1,"total":10}}');
INSERT INTO public.events VALUES (13, '2025-12-31 23:59:55+00', 'operation_ended', '01kdvdna00xsshc08bqknprp04', NULL, NULL, 'ada', 'verify 01kdvdna00xsshc08bqknprp04.a1.step-8', '{"operation_id":"00000000000000000000000000","kind":"verify","checkpoint_id":"01kdvdna00xsshc08bqknprp04.a1.step-8","state":"succeeded","message":"the text {\"chore_id\":\"x\"} is no key","ok":true}');
INSERT INTO public.events VALUES (14, '2026-01-01 00:00:00+00', 'submitted', '01kdvdna004tkbtbtrb4853amf', NULL, NULL, 'ada', 'second requests 1 slot as 1 rank', '{"world_size":1,"layout":"1 rank","forked_from":null,"parts":[],"not_exact":[]}');
INSERT INTO public.events VALUES (15, '2026-01-01 00:00:00+00', 'placed', '01kdvdna004tkbtbtrb4853amf', 1, NULL, 'scheduler', 'Attempt 1 got 1 slot on node-2', '{"layout":"1 rank","nodes":["node-2"],"spares":[],"parent_checkpoint_id":null,"start_step":0,"backfilled_before":null}');
INSERT INTO public.events VALUES (16, '2026-01-01 00:00:00+00', 'claimed', '01kdvdna004tkbtbtrb4853amf', 1, 'node-2', 'node-2', 'node-2 took on 1 slot', '{}');
INSERT INTO public.events VALUES (17, '2026-01-01 00:00:00+00', 'running', '01kdvdna004tkbtbtrb4853amf', 1, NULL, 'trainer', 'second trains from step 0', '{}');
INSERT INTO public.events VALUES (18, '2026-01-01 00:00:00+00', 'submitted', '01kdvdna00q4wy65cgv49x5eyg', NULL, NULL, 'ada', 'third requests 1 slot as 1 rank', '{"world_size":1,"layout":"1 rank","forked_from":null,"parts":[],"not_exact":[]}');
INSERT INTO public.holdings VALUES ('01kdvdna00q3zaqxm7r3303tkx', 'node-1', '01kdvdna00xsshc08bqknprp04', 'tiny', 'default', 1, 1, '2026-01-01 00:00:00+00', '2026-01-01 00:00:00+00', NULL, false);
INSERT INTO public.jobs VALUES ('01kdvdna00xsshc08bqknprp04', 'tiny', '[]', '{"name": "tiny", "description": "", "tags": [], "program": null, "model": {"family": "llama3", "size": "debug", "factory": null, "code": null, "arguments": {}, "block_classes": [], "plans": [], "initial_weights": null, "dim": null, "n_layers": null, "n_heads": null, "n_kv_heads": null, "ffn_dim": null, "vocab_size": null, "head_dim": null, "tied_embeddings": null, "rope_theta": null, "rope_factor": null, "norm_eps": null, "dropout": 0.0}, "data": {"source": "corpus", "corpus": "python-stdlib", "path": null, "text_field": "text", "split": "train", "tokenizer": "byte", "tokenizer_path": null, "document_masks": false, "max_tokens": null, "validation_fraction": 0.0, "prefetch_batches": 2}, "training": {"steps": 100, "seq_len": 128, "global_batch_size": 16, "micro_batch_size": 4, "seed": 0, "max_grad_norm": 1.0, "param_dtype": "float32", "weight_dtype": "float32", "reduce_dtype": "float32", "log_every_steps": "auto", "gc_freq": 50, "deterministic": false, "tensorboard": false}, "optimizer": {"name": "adamw", "lr": 0.0003, "beta1": 0.9, "beta2": 0.95, "eps": 1e-08, "weight_decay": 0.1, "no_decay": [], "state_dtype": "float32", "cpu_offload": false}, "lr_schedule": {"name": "warmup_stable_decay", "warmup_steps": 10, "warmup_tokens": null, "decay_steps": null, "decay_tokens": null, "decay_shape": "linear", "min_lr_ratio": 0.1, "total_steps": null, "total_tokens": null}, "parallelism": {"dp_replicate": 1, "dp_shard": -1, "reshard_after_forward": "default", "cp": 1, "cp_method": "allgather_kv", "tp": 1, "async_tp": false, "sequence_parallel": true, "loss_parallel": true, "pp": 1, "pp_schedule": "1F1B", "pp_microbatches": null, "pp_layers_per_stage": null, "pp_stage_modules": []}, "activation_checkpoint": {"mode": "none", "memory_budget": 0.5}, "compile": {"enabled": "auto", "backend": "inductor"}, "quantization": {"recipe": "none", "exclude": ["output"], "min_dim": 0}, "checkpoint": {"root": "checkpoints", "interval_steps": "auto", "interval_seconds": "auto", "preflight": true, "async_mode": "auto", "give_up_after_seconds": 3600.0, "writers": "auto", "staging_gib": 4.0, "keep_latest_k": 3, "keep_every_steps": 0, "keep_best_k": 0, "keep_best_metric": "validation/loss"}, "resources": {"world_size": 1, "nodes": null, "device": "auto", "priority": 0}, "retry": {"max_retries": 2, "backoff_seconds": 5.0, "on": ["hang", "node_lost", "preempted", "launch_error", "trainer_error"], "node_lost_after_seconds": 600.0}, "guard": {"non_finite_loss": "stop", "loss_spike": "ignore", "spike_factor": 3.0, "hang_seconds": 600.0}, "validation": {"interval_steps": 0, "batches": 8}, "env": {}}', '284c1471b31f68f2d70dd892c676136b7d4c7d8d2768da6c2463b5c12fcbbaa1', 'stopped', 'stop', NULL, 0, NULL, '2026-01-01 00:00:00+00', NULL, 1, 0, 1, '1 rank', 'root-1', '{"phase":null,"step":9,"steps":100,"steps_reported":false,"answers":[],"loss":null,"tokens_per_second":null,"seconds_left":null,"heartbeat_at":"2026-01-01T00:00:00Z"}', 'ada', '2026-01-01 00:00:00+00', '2026-01-01 00:00:00+00', '2026-01-01 00:00:00+00', '2026-01-01 00:00:00+00', NULL, NULL, NULL, NULL, NULL, 'default', NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, true, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.jobs VALUES ('01kdvdna004tkbtbtrb4853amf', 'second', '[]', '{"name":"second","description":"","tags":[],"project":"default","program":null,"model":{"family":"llama3","size":"debug","factory":null,"code":null,"arguments":{},"block_classes":[],"plans":[],"initial_weights":null,"dim":null,"n_layers":null,"n_heads":null,"n_kv_heads":null,"ffn_dim":null,"vocab_size":null,"head_dim":null,"tied_embeddings":null,"rope_theta":null,"rope_factor":null,"norm_eps":null,"dropout":0.0},"data":{"source":"corpus","corpus":"python-stdlib","path":null,"text_field":"text","split":"train","tokenizer":"byte","tokenizer_path":null,"document_masks":false,"max_tokens":null,"validation_fraction":0.0,"prefetch_batches":2},"training":{"steps":100,"seq_len":128,"global_batch_size":16,"micro_batch_size":4,"seed":0,"max_grad_norm":1.0,"param_dtype":"float32","weight_dtype":"float32","reduce_dtype":"float32","log_every_steps":"auto","gc_freq":50,"deterministic":false,"tensorboard":false},"optimizer":{"name":"adamw","lr":0.0003,"beta1":0.9,"beta2":0.95,"eps":1e-8,"weight_decay":0.1,"no_decay":[],"state_dtype":"float32","cpu_offload":false},"lr_schedule":{"name":"warmup_stable_decay","warmup_steps":10,"warmup_tokens":null,"decay_steps":null,"decay_tokens":null,"decay_shape":"linear","min_lr_ratio":0.1,"total_steps":null,"total_tokens":null},"parallelism":{"dp_replicate":1,"dp_shard":-1,"reshard_after_forward":"default","cp":1,"cp_method":"allgather_kv","tp":1,"async_tp":false,"sequence_parallel":true,"loss_parallel":true,"pp":1,"pp_schedule":"1F1B","pp_microbatches":null,"pp_layers_per_stage":null,"pp_stage_modules":[]},"activation_checkpoint":{"mode":"none","memory_budget":0.5},"compile":{"enabled":"auto","backend":"inductor"},"quantization":{"recipe":"none","exclude":["output"],"min_dim":0},"checkpoint":{"root":"checkpoints","interval_steps":"auto","interval_seconds":"auto","preflight":true,"async_mode":"auto","give_up_after_seconds":3600.0,"writers":"auto","staging_gib":4.0,"keep_latest_k":3,"keep_every_steps":0,"keep_best_k":0,"keep_best_metric":"validation/loss"},"resources":{"world_size":1,"min_world_size":null,"max_world_size":null,"shrink_after_seconds":null,"nodes":null,"spare_nodes":0,"device":"auto","priority":0,"max_runtime_seconds":null,"node_selector":{},"exclude_nodes":[]},"retry":{"max_retries":2,"backoff_seconds":5.0,"on":["hang","node_lost","preempted","launch_error","trainer_error"],"node_lost_after_seconds":600.0},"guard":{"non_finite_loss":"stop","loss_spike":"ignore","spike_factor":3.0,"hang_seconds":600.0},"validation":{"interval_steps":0,"batches":8},"env":{}}', '13c47d12bbb6722b9bb7ccbe12523e9a6d0cc84edaa4b4f10dbdc9e7a6767dcd', 'running', 'run', NULL, 0, NULL, '2026-01-01 00:00:00+00', NULL, 1, 0, 1, '1 rank', 'root-1', '{"phase":"training","step":3,"steps":100,"steps_reported":false,"answers":[],"loss":null,"tokens_per_second":null,"seconds_left":null,"heartbeat_at":"2026-01-01T00:00:00Z"}', 'ada', '2026-01-01 00:00:00+00', '2026-01-01 00:00:00+00', '2026-01-01 00:00:00+00', NULL, NULL, NULL, NULL, NULL, NULL, 'default', NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, true, NULL, 'token of ada', '44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a', NULL, NULL, NULL);
INSERT INTO public.jobs VALUES ('01kdvdna00q4wy65cgv49x5eyg', 'third', '[]', '{"name":"third","description":"","tags":[],"project":"default","program":null,"model":{"family":"llama3","size":"debug","factory":null,"code":null,"arguments":{},"block_classes":[],"plans":[],"initial_weights":null,"dim":null,"n_layers":null,"n_heads":null,"n_kv_heads":null,"ffn_dim":null,"vocab_size":null,"head_dim":null,"tied_embeddings":null,"rope_theta":null,"rope_factor":null,"norm_eps":null,"dropout":0.0},"data":{"source":"corpus","corpus":"python-stdlib","path":null,"text_field":"text","split":"train","tokenizer":"byte","tokenizer_path":null,"document_masks":false,"max_tokens":null,"validation_fraction":0.0,"prefetch_batches":2},"training":{"steps":100,"seq_len":128,"global_batch_size":16,"micro_batch_size":4,"seed":0,"max_grad_norm":1.0,"param_dtype":"float32","weight_dtype":"float32","reduce_dtype":"float32","log_every_steps":"auto","gc_freq":50,"deterministic":false,"tensorboard":false},"optimizer":{"name":"adamw","lr":0.0003,"beta1":0.9,"beta2":0.95,"eps":1e-8,"weight_decay":0.1,"no_decay":[],"state_dtype":"float32","cpu_offload":false},"lr_schedule":{"name":"warmup_stable_decay","warmup_steps":10,"warmup_tokens":null,"decay_steps":null,"decay_tokens":null,"decay_shape":"linear","min_lr_ratio":0.1,"total_steps":null,"total_tokens":null},"parallelism":{"dp_replicate":1,"dp_shard":-1,"reshard_after_forward":"default","cp":1,"cp_method":"allgather_kv","tp":1,"async_tp":false,"sequence_parallel":true,"loss_parallel":true,"pp":1,"pp_schedule":"1F1B","pp_microbatches":null,"pp_layers_per_stage":null,"pp_stage_modules":[]},"activation_checkpoint":{"mode":"none","memory_budget":0.5},"compile":{"enabled":"auto","backend":"inductor"},"quantization":{"recipe":"none","exclude":["output"],"min_dim":0},"checkpoint":{"root":"checkpoints","interval_steps":"auto","interval_seconds":"auto","preflight":true,"async_mode":"auto","give_up_after_seconds":3600.0,"writers":"auto","staging_gib":4.0,"keep_latest_k":3,"keep_every_steps":0,"keep_best_k":0,"keep_best_metric":"validation/loss"},"resources":{"world_size":1,"min_world_size":null,"max_world_size":null,"shrink_after_seconds":null,"nodes":null,"spare_nodes":0,"device":"auto","priority":0,"max_runtime_seconds":null,"node_selector":{},"exclude_nodes":[]},"retry":{"max_retries":2,"backoff_seconds":5.0,"on":["hang","node_lost","preempted","launch_error","trainer_error"],"node_lost_after_seconds":600.0},"guard":{"non_finite_loss":"stop","loss_spike":"ignore","spike_factor":3.0,"hang_seconds":600.0},"validation":{"interval_steps":0,"batches":8},"env":{}}', 'b0d6cf3f5630fcce5b61dfa52aec8efbaac660e5890b98e552ec8d54b0bc96cd', 'queued', 'run', NULL, 0, '{"cause":"submit","actor":"ada","overrides":{"parallelism":null,"micro_batch_size":null,"cpu_offload":null,"activation_checkpoint":null,"compile":null,"checkpoint":null,"resources":null,"retry":null,"steps":null},"layout":{"dp_replicate":1,"dp_shard":1,"cp":1,"tp":1,"pp":1},"checkpoint_id":null,"skip":[],"allow_code_change":false,"parent_named":false}', '2026-01-01 00:00:00+00', NULL, 0, 0, 1, '1 rank', NULL, '{"phase":null,"step":0,"steps":100,"steps_reported":false,"answers":[],"loss":null,"tokens_per_second":null,"seconds_left":null,"heartbeat_at":null}', 'ada', '2026-01-01 00:00:00+00', '2026-01-01 00:00:00+00', NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'default', NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, true, NULL, 'token of ada', '44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a', NULL, NULL, NULL);
INSERT INTO public.nodes VALUES ('node-1', 'node-1.test', '{"device": "cpu", "slots": 4, "device_name": "test", "device_memory_bytes": 8589934592, "cores": 4, "memory_bytes": 34359738368, "isolation": "none"}', 'cpu', 4, '{"checkpoints":"root-1","data":"root-2"}', '0', '2026-01-01 00:00:00+00', '2026-01-01 00:00:00+00', NULL, NULL, NULL, '{"folder":"00000000000000000000000000000000","boot_id":"b007-0000"}', 2, NULL, '[]', '{}', '{}', '{}', NULL, NULL, false, NULL, 'broker', NULL, NULL);
INSERT INTO public.nodes VALUES ('node-2', 'node-2.test', '{"device":"cpu","slots":2,"device_name":"test","device_memory_bytes":8589934592,"cores":2,"memory_bytes":17179869184,"isolation":"none","accelerators":[],"driver":null}', 'cpu', 2, '{"checkpoints":"root-1","data":"root-2"}', '0', '2026-01-01 00:00:00+00', '2026-01-01 00:00:00+00', NULL, NULL, NULL, '{"folder":"00000000000000000000000000000000","boot_id":"b007-0000"}', 3, NULL, '[]', '{}', '{}', '{}', NULL, NULL, false, NULL, 'broker', NULL, NULL);
INSERT INTO public.notices VALUES ('01kdvdna004tkbtbtrb4853amf', 'phase', '', 772, '2026-01-01 00:00:00+00', 1, 'node-2', '{"phase":"starting","step":null,"time":null}');
INSERT INTO public.operations VALUES ('00000000000000000000000000', 'verify', 'queued', '01kdvdna00xsshc08bqknprp04', 'llama', '01kdvdna00xsshc08bqknprp04.a1.step-8', 'ada', '', '{"kind":"verify","job_id":"01kdvdna00xsshc08bqknprp04","root":"data","paths":["j/a1/step-8"]}', NULL, NULL, 0, NULL, NULL, 'no node is online', NULL, NULL, NULL, NULL, '2025-12-31 23:59:55+00', NULL, NULL, NULL, NULL);
INSERT INTO public.operations VALUES ('00000000000000000000000001', 'scrub', 'running', '01kdvdna00xsshc08bqknprp04', 'llama', '01kdvdna00xsshc08bqknprp04.a1.step-8', 'ada', '', '{"kind":"scrub","job_id":"01kdvdna00xsshc08bqknprp04","root":"data","paths":["j/a1/step-8"]}', NULL, 'node-1', 2, NULL, NULL, NULL, NULL, '2025-12-31 23:59:55+00', '{"doing":"reads","done":1,"total":10}', NULL, '2025-12-31 23:59:55+00', '2025-12-31 23:59:55+00', NULL, NULL, NULL);
INSERT INTO public.operations VALUES ('00000000000000000000000002', 'delete', 'succeeded', '01kdvdna00xsshc08bqknprp04', 'llama', '01kdvdna00xsshc08bqknprp04.a1.step-8', 'ada', '', '{"kind":"delete","job_id":"01kdvdna00xsshc08bqknprp04","root":"data","paths":["j/a1/step-8"]}', NULL, 'node-1', 1, NULL, NULL, NULL, NULL, NULL, NULL, '{"outcome":"succeeded","message":"3 files","files":3}', '2025-12-31 23:59:55+00', NULL, '2025-12-31 23:59:55+00', NULL, NULL);
INSERT INTO public.projects VALUES ('default', 'Jobs that name no project', 1, NULL, NULL, 'server', '2026-11-30 01:40:16.710899+00');
SELECT pg_catalog.setval('public.events_id_seq', 18, true);
SELECT pg_catalog.setval('public.metric_series_id_seq', 1, false);
ALTER TABLE ONLY public.alembic_version
    ADD CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num);
ALTER TABLE ONLY public.artifact_blocks
    ADD CONSTRAINT pk_artifact_blocks PRIMARY KEY (content_id, number);
ALTER TABLE ONLY public.artifact_contents
    ADD CONSTRAINT pk_artifact_contents PRIMARY KEY (id);
ALTER TABLE ONLY public.artifacts
    ADD CONSTRAINT pk_artifacts PRIMARY KEY (id);
ALTER TABLE ONLY public.attempt_nodes
    ADD CONSTRAINT pk_attempt_nodes PRIMARY KEY (attempt_id, node);
ALTER TABLE ONLY public.attempts
    ADD CONSTRAINT pk_attempts PRIMARY KEY (id);
ALTER TABLE ONLY public.calibrations
    ADD CONSTRAINT pk_calibrations PRIMARY KEY (device, device_name);
ALTER TABLE ONLY public.capacity_changes
    ADD CONSTRAINT pk_capacity_changes PRIMARY KEY (node, since);
ALTER TABLE ONLY public.checkpoints
    ADD CONSTRAINT pk_checkpoints PRIMARY KEY (id);
ALTER TABLE ONLY public.config_words
    ADD CONSTRAINT pk_config_words PRIMARY KEY (word, job_id);
ALTER TABLE ONLY public.deleted_notices
    ADD CONSTRAINT pk_deleted_notices PRIMARY KEY (id);
ALTER TABLE ONLY public.demands
    ADD CONSTRAINT pk_demands PRIMARY KEY (key);
ALTER TABLE ONLY public.events
    ADD CONSTRAINT pk_events PRIMARY KEY (id);
ALTER TABLE ONLY public.failed_logins
    ADD CONSTRAINT pk_failed_logins PRIMARY KEY (address);
ALTER TABLE ONLY public.holdings
    ADD CONSTRAINT pk_holdings PRIMARY KEY (attempt_id, node, since);
ALTER TABLE ONLY public.idempotency_keys
    ADD CONSTRAINT pk_idempotency_keys PRIMARY KEY (actor, key);
ALTER TABLE ONLY public.imports
    ADD CONSTRAINT pk_imports PRIMARY KEY (job_id);
ALTER TABLE ONLY public.job_facts
    ADD CONSTRAINT pk_job_facts PRIMARY KEY (job_id);
ALTER TABLE ONLY public.job_packs
    ADD CONSTRAINT pk_job_packs PRIMARY KEY (job_id);
ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT pk_jobs PRIMARY KEY (id);
ALTER TABLE ONLY public.leaders
    ADD CONSTRAINT pk_leaders PRIMARY KEY (name);
ALTER TABLE ONLY public.liveness
    ADD CONSTRAINT pk_liveness PRIMARY KEY (id);
ALTER TABLE ONLY public.log_blocks
    ADD CONSTRAINT pk_log_blocks PRIMARY KEY (attempt_id, rank, first_line);
ALTER TABLE ONLY public.logs
    ADD CONSTRAINT pk_logs PRIMARY KEY (attempt_id, rank);
ALTER TABLE ONLY public.measured_runs
    ADD CONSTRAINT pk_measured_runs PRIMARY KEY (attempt_id);
ALTER TABLE ONLY public.metric_chunks
    ADD CONSTRAINT pk_metric_chunks PRIMARY KEY (series_id, first_step);
ALTER TABLE ONLY public.metric_series
    ADD CONSTRAINT pk_metric_series PRIMARY KEY (id);
ALTER TABLE ONLY public.metric_tails
    ADD CONSTRAINT pk_metric_tails PRIMARY KEY (series_id, last_step);
ALTER TABLE ONLY public.node_points
    ADD CONSTRAINT pk_node_points PRIMARY KEY (node, seconds, start);
ALTER TABLE ONLY public.node_requests
    ADD CONSTRAINT pk_node_requests PRIMARY KEY (id);
ALTER TABLE ONLY public.nodes
    ADD CONSTRAINT pk_nodes PRIMARY KEY (name);
ALTER TABLE ONLY public.notices
    ADD CONSTRAINT pk_notices PRIMARY KEY (job_id, kind, part);
ALTER TABLE ONLY public.operations
    ADD CONSTRAINT pk_operations PRIMARY KEY (id);
ALTER TABLE ONLY public.pack_blocks
    ADD CONSTRAINT pk_pack_blocks PRIMARY KEY (pack_id, number);
ALTER TABLE ONLY public.packs
    ADD CONSTRAINT pk_packs PRIMARY KEY (id);
ALTER TABLE ONLY public.periodic_tasks
    ADD CONSTRAINT pk_periodic_tasks PRIMARY KEY (name);
ALTER TABLE ONLY public.pilots
    ADD CONSTRAINT pk_pilots PRIMARY KEY (request_id, number);
ALTER TABLE ONLY public.project_usage
    ADD CONSTRAINT pk_project_usage PRIMARY KEY (project, month);
ALTER TABLE ONLY public.projects
    ADD CONSTRAINT pk_projects PRIMARY KEY (name);
ALTER TABLE ONLY public.rank_progress
    ADD CONSTRAINT pk_rank_progress PRIMARY KEY (attempt_id, rank);
ALTER TABLE ONLY public.rank_steps
    ADD CONSTRAINT pk_rank_steps PRIMARY KEY (attempt_id, step);
ALTER TABLE ONLY public.requests
    ADD CONSTRAINT pk_requests PRIMARY KEY (id);
ALTER TABLE ONLY public.sessions
    ADD CONSTRAINT pk_sessions PRIMARY KEY (hash);
ALTER TABLE ONLY public.shells
    ADD CONSTRAINT pk_shells PRIMARY KEY (id);
ALTER TABLE ONLY public.sources
    ADD CONSTRAINT pk_sources PRIMARY KEY (name);
ALTER TABLE ONLY public.step_digests
    ADD CONSTRAINT pk_step_digests PRIMARY KEY (attempt_id, step);
ALTER TABLE ONLY public.stragglers
    ADD CONSTRAINT pk_stragglers PRIMARY KEY (attempt_id, rank, step);
ALTER TABLE ONLY public.tokens
    ADD CONSTRAINT pk_tokens PRIMARY KEY (id);
ALTER TABLE ONLY public.artifact_contents
    ADD CONSTRAINT uq_artifact_contents_job_id_digest UNIQUE (job_id, digest);
ALTER TABLE ONLY public.attempt_nodes
    ADD CONSTRAINT uq_attempt_nodes_token_hash UNIQUE (token_hash);
ALTER TABLE ONLY public.attempts
    ADD CONSTRAINT uq_attempts_job_id_number UNIQUE (job_id, number);
ALTER TABLE ONLY public.imports
    ADD CONSTRAINT uq_imports_digest UNIQUE (digest);
ALTER TABLE ONLY public.metric_series
    ADD CONSTRAINT uq_metric_series_attempt_id_name UNIQUE (attempt_id, name);
ALTER TABLE ONLY public.packs
    ADD CONSTRAINT uq_packs_digest UNIQUE (digest);
ALTER TABLE ONLY public.pilots
    ADD CONSTRAINT uq_pilots_secret_hash UNIQUE (secret_hash);
ALTER TABLE ONLY public.tokens
    ADD CONSTRAINT uq_tokens_hash UNIQUE (hash);
CREATE INDEX ix_artifacts_content_id ON public.artifacts USING btree (content_id);
CREATE INDEX ix_artifacts_job_id ON public.artifacts USING btree (job_id, id);
CREATE INDEX ix_artifacts_job_id_kind ON public.artifacts USING btree (job_id, kind, id);
CREATE INDEX ix_attempt_nodes_holding ON public.attempt_nodes USING btree (node) WHERE ((state)::text <> 'ended'::text);
CREATE INDEX ix_attempt_nodes_node_state ON public.attempt_nodes USING btree (node, state);
CREATE INDEX ix_attempts_ended_at ON public.attempts USING btree (ended_at);
CREATE INDEX ix_attempts_pace ON public.attempts USING btree (pace_digest, ended_at);
CREATE INDEX ix_attempts_state ON public.attempts USING btree (state);
CREATE INDEX ix_checkpoints_attempt_id ON public.checkpoints USING btree (attempt_id);
CREATE INDEX ix_checkpoints_job_id_attempt_step ON public.checkpoints USING btree (job_id, attempt, step);
CREATE INDEX ix_config_words_job_id ON public.config_words USING btree (job_id);
CREATE INDEX ix_events_job_id_id ON public.events USING btree (job_id, id);
CREATE INDEX ix_holdings_job_id ON public.holdings USING btree (job_id);
CREATE INDEX ix_holdings_unsettled ON public.holdings USING btree (job_id) WHERE (spent IS NULL);
CREATE INDEX ix_holdings_until ON public.holdings USING btree (until);
CREATE INDEX ix_idempotency_keys_created_at ON public.idempotency_keys USING btree (created_at);
CREATE INDEX ix_job_packs_pack_id ON public.job_packs USING btree (pack_id);
CREATE INDEX ix_jobs_forked_from ON public.jobs USING btree (forked_from);
CREATE INDEX ix_jobs_name_id ON public.jobs USING btree (name, id);
CREATE INDEX ix_jobs_project_id ON public.jobs USING btree (project, id);
CREATE INDEX ix_jobs_queue ON public.jobs USING btree (state, demand, priority, queued_at, id, project, world_size, spare_slots);
CREATE INDEX ix_jobs_search ON public.jobs USING btree (id, state, name, tags);
CREATE INDEX ix_jobs_state_id ON public.jobs USING btree (state, id);
CREATE INDEX ix_measured_runs_device_device_name ON public.measured_runs USING btree (device, device_name);
CREATE INDEX ix_measured_runs_ended_at ON public.measured_runs USING btree (ended_at);
CREATE INDEX ix_node_requests_ended_at ON public.node_requests USING btree (ended_at);
CREATE INDEX ix_node_requests_open ON public.node_requests USING btree (source) WHERE ((state)::text <> 'ended'::text);
CREATE INDEX ix_node_requests_source_id ON public.node_requests USING btree (source, id);
CREATE INDEX ix_nodes_registered_at ON public.nodes USING btree (registered_at);
CREATE INDEX ix_nodes_request_id ON public.nodes USING btree (request_id);
CREATE INDEX ix_notices_at ON public.notices USING btree (at);
CREATE INDEX ix_notices_seq ON public.notices USING btree (seq);
CREATE INDEX ix_operations_checkpoint_id_id ON public.operations USING btree (checkpoint_id, id);
CREATE INDEX ix_operations_job_id_id ON public.operations USING btree (job_id, id);
CREATE INDEX ix_operations_state_id ON public.operations USING btree (state, id);
CREATE INDEX ix_packs_named_at ON public.packs USING btree (named_at);
CREATE INDEX ix_packs_token_id ON public.packs USING btree (token_id);
CREATE INDEX ix_requests_attempt_id ON public.requests USING btree (attempt_id);
CREATE INDEX ix_shells_attempt_id_node ON public.shells USING btree (attempt_id, node);
CREATE INDEX ix_shells_token_id ON public.shells USING btree (token_id);
CREATE INDEX ix_stragglers_node_found_at ON public.stragglers USING btree (node, found_at);
ALTER TABLE ONLY public.artifact_blocks
    ADD CONSTRAINT fk_artifact_blocks_content_id_artifact_contents FOREIGN KEY (content_id) REFERENCES public.artifact_contents(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.artifact_contents
    ADD CONSTRAINT fk_artifact_contents_job_id_jobs FOREIGN KEY (job_id) REFERENCES public.jobs(id) ON DELETE SET NULL;
ALTER TABLE ONLY public.artifacts
    ADD CONSTRAINT fk_artifacts_content_id_artifact_contents FOREIGN KEY (content_id) REFERENCES public.artifact_contents(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.artifacts
    ADD CONSTRAINT fk_artifacts_job_id_jobs FOREIGN KEY (job_id) REFERENCES public.jobs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.attempt_nodes
    ADD CONSTRAINT fk_attempt_nodes_attempt_id_attempts FOREIGN KEY (attempt_id) REFERENCES public.attempts(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.attempt_nodes
    ADD CONSTRAINT fk_attempt_nodes_node_nodes FOREIGN KEY (node) REFERENCES public.nodes(name);
ALTER TABLE ONLY public.attempts
    ADD CONSTRAINT fk_attempts_job_id_jobs FOREIGN KEY (job_id) REFERENCES public.jobs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.checkpoints
    ADD CONSTRAINT fk_checkpoints_attempt_id_attempts FOREIGN KEY (attempt_id) REFERENCES public.attempts(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.checkpoints
    ADD CONSTRAINT fk_checkpoints_job_id_jobs FOREIGN KEY (job_id) REFERENCES public.jobs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.config_words
    ADD CONSTRAINT fk_config_words_job_id_jobs FOREIGN KEY (job_id) REFERENCES public.jobs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.imports
    ADD CONSTRAINT fk_imports_job_id_jobs FOREIGN KEY (job_id) REFERENCES public.jobs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.job_facts
    ADD CONSTRAINT fk_job_facts_job_id_jobs FOREIGN KEY (job_id) REFERENCES public.jobs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.job_packs
    ADD CONSTRAINT fk_job_packs_job_id_jobs FOREIGN KEY (job_id) REFERENCES public.jobs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.job_packs
    ADD CONSTRAINT fk_job_packs_pack_id_packs FOREIGN KEY (pack_id) REFERENCES public.packs(id);
ALTER TABLE ONLY public.log_blocks
    ADD CONSTRAINT fk_log_blocks_attempt_id_attempts FOREIGN KEY (attempt_id) REFERENCES public.attempts(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.logs
    ADD CONSTRAINT fk_logs_attempt_id_attempts FOREIGN KEY (attempt_id) REFERENCES public.attempts(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.metric_chunks
    ADD CONSTRAINT fk_metric_chunks_series_id_metric_series FOREIGN KEY (series_id) REFERENCES public.metric_series(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.metric_series
    ADD CONSTRAINT fk_metric_series_attempt_id_attempts FOREIGN KEY (attempt_id) REFERENCES public.attempts(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.metric_tails
    ADD CONSTRAINT fk_metric_tails_series_id_metric_series FOREIGN KEY (series_id) REFERENCES public.metric_series(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.node_points
    ADD CONSTRAINT fk_node_points_node_nodes FOREIGN KEY (node) REFERENCES public.nodes(name) ON DELETE CASCADE;
ALTER TABLE ONLY public.node_requests
    ADD CONSTRAINT fk_node_requests_source_sources FOREIGN KEY (source) REFERENCES public.sources(name) ON DELETE CASCADE;
ALTER TABLE ONLY public.pack_blocks
    ADD CONSTRAINT fk_pack_blocks_pack_id_packs FOREIGN KEY (pack_id) REFERENCES public.packs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.pilots
    ADD CONSTRAINT fk_pilots_request_id_node_requests FOREIGN KEY (request_id) REFERENCES public.node_requests(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.rank_progress
    ADD CONSTRAINT fk_rank_progress_attempt_id_attempts FOREIGN KEY (attempt_id) REFERENCES public.attempts(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.rank_steps
    ADD CONSTRAINT fk_rank_steps_attempt_id_attempts FOREIGN KEY (attempt_id) REFERENCES public.attempts(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.requests
    ADD CONSTRAINT fk_requests_attempt_id_attempts FOREIGN KEY (attempt_id) REFERENCES public.attempts(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.sessions
    ADD CONSTRAINT fk_sessions_token_id_tokens FOREIGN KEY (token_id) REFERENCES public.tokens(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.shells
    ADD CONSTRAINT fk_shells_attempt_id_attempts FOREIGN KEY (attempt_id) REFERENCES public.attempts(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.step_digests
    ADD CONSTRAINT fk_step_digests_attempt_id_attempts FOREIGN KEY (attempt_id) REFERENCES public.attempts(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.stragglers
    ADD CONSTRAINT fk_stragglers_attempt_id_attempts FOREIGN KEY (attempt_id) REFERENCES public.attempts(id) ON DELETE CASCADE;
