BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0059');
CREATE TABLE artifact_blocks (
	content_id VARCHAR(26) NOT NULL, 
	number INTEGER NOT NULL, 
	content BLOB NOT NULL, 
	CONSTRAINT pk_artifact_blocks PRIMARY KEY (content_id, number), 
	CONSTRAINT fk_artifact_blocks_content_id_artifact_contents FOREIGN KEY(content_id) REFERENCES artifact_contents (id) ON DELETE CASCADE
);
CREATE TABLE artifact_contents (
	id VARCHAR(26) NOT NULL, 
	job_id VARCHAR(26), 
	digest VARCHAR(71) NOT NULL, 
	size BIGINT NOT NULL, 
	stored BIGINT NOT NULL, 
	complete BOOLEAN NOT NULL, 
	media_type VARCHAR(40), 
	touched_at DATETIME NOT NULL, 
	CONSTRAINT pk_artifact_contents PRIMARY KEY (id), 
	CONSTRAINT fk_artifact_contents_job_id_jobs FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE SET NULL, 
	CONSTRAINT uq_artifact_contents_job_id_digest UNIQUE (job_id, digest)
);
CREATE TABLE artifacts (
	id VARCHAR(26) NOT NULL, 
	job_id VARCHAR(26) NOT NULL, 
	attempt INTEGER NOT NULL, 
	process INTEGER, 
	kind VARCHAR(64) NOT NULL, 
	name VARCHAR(200) NOT NULL, 
	step BIGINT, 
	caption TEXT NOT NULL, 
	time FLOAT NOT NULL, 
	content_id VARCHAR(26), 
	histogram TEXT, 
	CONSTRAINT pk_artifacts PRIMARY KEY (id), 
	CONSTRAINT fk_artifacts_job_id_jobs FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE, 
	CONSTRAINT fk_artifacts_content_id_artifact_contents FOREIGN KEY(content_id) REFERENCES artifact_contents (id) ON DELETE CASCADE
);
CREATE TABLE attempt_nodes (
	attempt_id VARCHAR(26) NOT NULL, 
	node VARCHAR(100) NOT NULL, 
	node_rank INTEGER NOT NULL, 
	slots TEXT NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	outcome VARCHAR(16), 
	failure TEXT, 
	token_hash VARCHAR(64), 
	identity TEXT, 
	sent_at DATETIME, 
	claimed_at DATETIME, 
	last_report_at DATETIME, 
	unreachable_since DATETIME, 
	exit TEXT, worker TEXT, lost_at DATETIME, spare_since DATETIME, acknowledged TEXT DEFAULT '{}' NOT NULL, 
	CONSTRAINT pk_attempt_nodes PRIMARY KEY (attempt_id, node), 
	CONSTRAINT ck_attempt_nodes_state CHECK (state IN ('placed', 'claimed', 'running', 'spare', 'ended')), 
	CONSTRAINT fk_attempt_nodes_attempt_id_attempts FOREIGN KEY(attempt_id) REFERENCES attempts (id) ON DELETE CASCADE, 
	CONSTRAINT fk_attempt_nodes_node_nodes FOREIGN KEY(node) REFERENCES nodes (name), 
	CONSTRAINT uq_attempt_nodes_token_hash UNIQUE (token_hash)
);
INSERT INTO "attempt_nodes" VALUES('01kdvdna00rfk05w7wqtyn3dmh','node-1',0,'[0]','ended','stopped',NULL,'7c7bfdc9487d6b722b4fb7027eac03ea989e12546730146e7460543064a1a88a','{"boot_id":"boot","pid_namespace":"1","pid":100,"start_time":1}','2026-01-01 00:00:00.000000','2026-01-01 00:00:00.000000','2026-01-01 00:00:00.000000',NULL,'{"outcome": "stopped", "failure": null, "ranks": [], "time": 1767225600.0, "unreported_commit": false}','{"folder":"00000000000000000000000000000000","boot_id":"b007-0000"}',NULL,NULL,'{}');
INSERT INTO "attempt_nodes" VALUES('01kdvdna00w85ggjwj57m7ejth','node-2',0,'[0]','running',NULL,NULL,'e9fc2e5a2c7967074abf1d1decd8776d68a02899f59a0a25fb946b05b5e5ec40','{"boot_id":"boot","pid_namespace":"1","pid":100,"start_time":1}','2026-01-01 00:00:00.000000','2026-01-01 00:00:00.000000','2026-01-01 00:00:00.000000',NULL,NULL,'{"folder":"00000000000000000000000000000000","boot_id":"b007-0000"}',NULL,NULL,'{}');
CREATE TABLE attempts (
	id VARCHAR(26) NOT NULL, 
	job_id VARCHAR(26) NOT NULL, 
	number INTEGER NOT NULL, 
	cause VARCHAR(16) NOT NULL, 
	actor VARCHAR(100) NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	desired VARCHAR(8) NOT NULL, 
	outcome VARCHAR(16), 
	failure TEXT, 
	layout TEXT NOT NULL, 
	overrides TEXT NOT NULL, 
	micro_batch_size INTEGER NOT NULL, 
	parent_checkpoint_id VARCHAR(200), 
	start_step INTEGER NOT NULL, 
	last_step INTEGER NOT NULL, 
	rendezvous_port INTEGER NOT NULL, 
	provenance TEXT, 
	continuity TEXT, 
	created_at DATETIME NOT NULL, 
	started_at DATETIME, 
	ended_at DATETIME, skip TEXT DEFAULT '[]' NOT NULL, preempted TEXT, save_failed TEXT, allow_code_change BOOLEAN DEFAULT '0' NOT NULL, parent_named BOOLEAN DEFAULT '0' NOT NULL, device VARCHAR(8) DEFAULT 'cpu' NOT NULL, rank_times TEXT, ordered_at DATETIME, check_network BOOLEAN DEFAULT '0' NOT NULL, tainted BOOLEAN DEFAULT '1' NOT NULL, pace_digest VARCHAR(64), expected_end_at DATETIME, gives_way BOOLEAN DEFAULT '0' NOT NULL, runs_until DATETIME, 
	CONSTRAINT pk_attempts PRIMARY KEY (id), 
	CONSTRAINT ck_attempts_desired CHECK (desired IN ('run', 'stop', 'cancel')), 
	CONSTRAINT ck_attempts_state CHECK (state IN ('placed', 'starting', 'running', 'stopping', 'ended')), 
	CONSTRAINT fk_attempts_job_id_jobs FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE, 
	CONSTRAINT uq_attempts_job_id_number UNIQUE (job_id, number)
);
INSERT INTO "attempts" VALUES('01kdvdna00rfk05w7wqtyn3dmh','01kdvdna00wns48n7pbwbpt9bn',1,'submit','ada','ended','stop','stopped',NULL,'{"dp_replicate":1,"dp_shard":1,"cp":1,"tp":1,"pp":1}','{"parallelism":null,"micro_batch_size":null,"cpu_offload":null,"activation_checkpoint":null,"compile":null,"checkpoint":null,"resources":null,"retry":null,"steps":null}',4,NULL,0,9,22342,NULL,NULL,'2026-01-01 00:00:00.000000','2026-01-01 00:00:00.000000','2026-01-01 00:00:00.000000','[]',NULL,NULL,0,0,'cpu',NULL,NULL,0,1,NULL,NULL,0,NULL);
INSERT INTO "attempts" VALUES('01kdvdna00w85ggjwj57m7ejth','01kdvdna00pjeg16jmmrhgp87m',1,'submit','ada','running','run',NULL,NULL,'{"dp_replicate":1,"dp_shard":1,"cp":1,"tp":1,"pp":1}','{"parallelism":null,"micro_batch_size":null,"cpu_offload":null,"activation_checkpoint":null,"compile":null,"checkpoint":null,"resources":null,"retry":null,"steps":null}',4,NULL,0,3,21586,NULL,NULL,'2026-01-01 00:00:00.000000','2026-01-01 00:00:00.000000',NULL,'[]',NULL,NULL,0,0,'cpu',NULL,NULL,0,0,'44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a',NULL,0,NULL);
CREATE TABLE calibrations (
	device VARCHAR(8) NOT NULL, 
	device_name VARCHAR(200) NOT NULL, 
	fitted TEXT NOT NULL, 
	fitted_at DATETIME NOT NULL, 
	CONSTRAINT pk_calibrations PRIMARY KEY (device, device_name)
);
CREATE TABLE capacity_changes (
	node VARCHAR(100) NOT NULL, 
	since DATETIME NOT NULL, 
	slots INTEGER NOT NULL, 
	online BOOLEAN NOT NULL, 
	takes_jobs BOOLEAN NOT NULL, 
	withheld INTEGER NOT NULL, 
	CONSTRAINT pk_capacity_changes PRIMARY KEY (node, since)
);
CREATE TABLE checkpoints (
	id VARCHAR(200) NOT NULL, 
	job_id VARCHAR(26) NOT NULL, 
	attempt_id VARCHAR(26) NOT NULL, 
	attempt INTEGER NOT NULL, 
	step INTEGER NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	root VARCHAR(32) NOT NULL, 
	path VARCHAR(500) NOT NULL, 
	size BIGINT NOT NULL, 
	files INTEGER NOT NULL, 
	layout VARCHAR(100) NOT NULL, 
	save_seconds FLOAT NOT NULL, 
	parent_id VARCHAR(200), 
	metadata_digest VARCHAR(32) NOT NULL, 
	manifest TEXT NOT NULL, 
	created_at DATETIME NOT NULL, verified BOOLEAN, checked_at DATETIME, verification TEXT, pinned_at DATETIME, pinned_by VARCHAR(100), deleting_since DATETIME, stall_seconds FLOAT, writers INTEGER, write_seconds FLOAT, dtype VARCHAR(16), 
	CONSTRAINT pk_checkpoints PRIMARY KEY (id), 
	CONSTRAINT fk_checkpoints_attempt_id_attempts FOREIGN KEY(attempt_id) REFERENCES attempts (id) ON DELETE CASCADE, 
	CONSTRAINT fk_checkpoints_job_id_jobs FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);
INSERT INTO "checkpoints" VALUES('01kdvdna00wns48n7pbwbpt9bn.a1.step-4','01kdvdna00wns48n7pbwbpt9bn','01kdvdna00rfk05w7wqtyn3dmh',1,4,'interval','checkpoints','01kdvdna00wns48n7pbwbpt9bn/a1/step-4',0,0,'1 rank',0.1,NULL,'mmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmm','{"format_version": 1, "checkpoint_id": "01kdvdna00wns48n7pbwbpt9bn.a1.step-4", "job_id": "01kdvdna00wns48n7pbwbpt9bn", "attempt": 1, "created_at": "2026-01-01T00:00:00Z", "train_state": {"step": 4, "tokens": 8192, "data": {"position": 64, "consumed": 64, "skipped": [], "dataset_digest": "dddddddddddddddddddddddddddddddd"}}, "start": null, "layout": {"dp_replicate": 1, "dp_shard": 1, "cp": 1, "tp": 1, "pp": 1}, "seed": 0, "spec_digest": "5555555555555555555555555555555555555555555555555555555555555555", "spec": {"name": "tiny", "description": "", "tags": [], "program": null, "model": {"family": "llama3", "size": "debug", "factory": null, "code": null, "arguments": {}, "block_classes": [], "plans": [], "initial_weights": null, "dim": null, "n_layers": null, "n_heads": null, "n_kv_heads": null, "ffn_dim": null, "vocab_size": null, "head_dim": null, "tied_embeddings": null, "rope_theta": null, "rope_factor": null, "norm_eps": null, "dropout": 0.0}, "data": {"source": "corpus", "corpus": "python-stdlib", "path": null, "text_field": "text", "split": "train", "tokenizer": "byte", "tokenizer_path": null, "document_masks": false, "max_tokens": null, "validation_fraction": 0.0, "prefetch_batches": 2}, "training": {"steps": 100, "seq_len": 128, "global_batch_size": 16, "micro_batch_size": 4, "seed": 0, "max_grad_norm": 1.0, "param_dtype": "float32", "weight_dtype": "float32", "reduce_dtype": "float32", "log_every_steps": "auto", "gc_freq": 50, "deterministic": false, "tensorboard": false}, "optimizer": {"name": "adamw", "lr": 0.0003, "beta1": 0.9, "beta2": 0.95, "eps": 1e-08, "weight_decay": 0.1, "no_decay": [], "state_dtype": "float32", "cpu_offload": false}, "lr_schedule": {"name": "warmup_stable_decay", "warmup_steps": 10, "warmup_tokens": null, "decay_steps": null, "decay_tokens": null, "decay_shape": "linear", "min_lr_ratio": 0.1, "total_steps": null, "total_tokens": null}, "parallelism": {"dp_replicate": 1, "dp_shard": -1, "reshard_after_forward": "default", "cp": 1, "cp_method": "allgather_kv", "tp": 1, "async_tp": false, "sequence_parallel": true, "loss_parallel": true, "pp": 1, "pp_schedule": "1F1B", "pp_microbatches": null, "pp_layers_per_stage": null, "pp_stage_modules": []}, "activation_checkpoint": {"mode": "none", "memory_budget": 0.5}, "compile": {"enabled": "auto", "backend": "inductor"}, "quantization": {"recipe": "none", "exclude": ["output"], "min_dim": 0}, "checkpoint": {"root": "checkpoints", "interval_steps": "auto", "interval_seconds": "auto", "preflight": true, "async_mode": "auto", "give_up_after_seconds": 3600.0, "writers": "auto", "staging_gib": 4.0, "keep_latest_k": 3, "keep_every_steps": 0, "keep_best_k": 0, "keep_best_metric": "validation/loss"}, "resources": {"world_size": 1, "nodes": null, "device": "auto", "priority": 0}, "retry": {"max_retries": 2, "backoff_seconds": 5.0, "on": ["hang", "node_lost", "preempted", "launch_error", "trainer_error"], "node_lost_after_seconds": 600.0}, "guard": {"non_finite_loss": "stop", "loss_spike": "ignore", "spike_factor": 3.0, "hang_seconds": 600.0}, "validation": {"interval_steps": 0, "batches": 8}, "env": {}}, "code_digest": null, "parent": null, "kind": "interval", "param_dtype": "float32", "model": {"family": "llama3", "size": "debug", "factory": null, "code": null, "arguments": {}, "block_classes": [], "plans": [], "initial_weights": null, "dim": null, "n_layers": null, "n_heads": null, "n_kv_heads": null, "ffn_dim": null, "vocab_size": null, "head_dim": null, "tied_embeddings": null, "rope_theta": null, "rope_factor": null, "norm_eps": null, "dropout": 0.0}, "seq_len": 128, "torch_version": "2.13.0", "save_seconds": 0.1, "files": [], "writers": []}','2026-01-01 00:00:00.000000',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'float32');
INSERT INTO "checkpoints" VALUES('01kdvdna00wns48n7pbwbpt9bn.a1.step-8','01kdvdna00wns48n7pbwbpt9bn','01kdvdna00rfk05w7wqtyn3dmh',1,8,'interval','checkpoints','01kdvdna00wns48n7pbwbpt9bn/a1/step-8',0,0,'1 rank',0.1,NULL,'mmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmm','{"format_version": 1, "checkpoint_id": "01kdvdna00wns48n7pbwbpt9bn.a1.step-8", "job_id": "01kdvdna00wns48n7pbwbpt9bn", "attempt": 1, "created_at": "2026-01-01T00:00:00Z", "train_state": {"step": 8, "tokens": 16384, "data": {"position": 128, "consumed": 128, "skipped": [], "dataset_digest": "dddddddddddddddddddddddddddddddd"}}, "start": null, "layout": {"dp_replicate": 1, "dp_shard": 1, "cp": 1, "tp": 1, "pp": 1}, "seed": 0, "spec_digest": "5555555555555555555555555555555555555555555555555555555555555555", "spec": {"name": "tiny", "description": "", "tags": [], "program": null, "model": {"family": "llama3", "size": "debug", "factory": null, "code": null, "arguments": {}, "block_classes": [], "plans": [], "initial_weights": null, "dim": null, "n_layers": null, "n_heads": null, "n_kv_heads": null, "ffn_dim": null, "vocab_size": null, "head_dim": null, "tied_embeddings": null, "rope_theta": null, "rope_factor": null, "norm_eps": null, "dropout": 0.0}, "data": {"source": "corpus", "corpus": "python-stdlib", "path": null, "text_field": "text", "split": "train", "tokenizer": "byte", "tokenizer_path": null, "document_masks": false, "max_tokens": null, "validation_fraction": 0.0, "prefetch_batches": 2}, "training": {"steps": 100, "seq_len": 128, "global_batch_size": 16, "micro_batch_size": 4, "seed": 0, "max_grad_norm": 1.0, "param_dtype": "float32", "weight_dtype": "float32", "reduce_dtype": "float32", "log_every_steps": "auto", "gc_freq": 50, "deterministic": false, "tensorboard": false}, "optimizer": {"name": "adamw", "lr": 0.0003, "beta1": 0.9, "beta2": 0.95, "eps": 1e-08, "weight_decay": 0.1, "no_decay": [], "state_dtype": "float32", "cpu_offload": false}, "lr_schedule": {"name": "warmup_stable_decay", "warmup_steps": 10, "warmup_tokens": null, "decay_steps": null, "decay_tokens": null, "decay_shape": "linear", "min_lr_ratio": 0.1, "total_steps": null, "total_tokens": null}, "parallelism": {"dp_replicate": 1, "dp_shard": -1, "reshard_after_forward": "default", "cp": 1, "cp_method": "allgather_kv", "tp": 1, "async_tp": false, "sequence_parallel": true, "loss_parallel": true, "pp": 1, "pp_schedule": "1F1B", "pp_microbatches": null, "pp_layers_per_stage": null, "pp_stage_modules": []}, "activation_checkpoint": {"mode": "none", "memory_budget": 0.5}, "compile": {"enabled": "auto", "backend": "inductor"}, "quantization": {"recipe": "none", "exclude": ["output"], "min_dim": 0}, "checkpoint": {"root": "checkpoints", "interval_steps": "auto", "interval_seconds": "auto", "preflight": true, "async_mode": "auto", "give_up_after_seconds": 3600.0, "writers": "auto", "staging_gib": 4.0, "keep_latest_k": 3, "keep_every_steps": 0, "keep_best_k": 0, "keep_best_metric": "validation/loss"}, "resources": {"world_size": 1, "nodes": null, "device": "auto", "priority": 0}, "retry": {"max_retries": 2, "backoff_seconds": 5.0, "on": ["hang", "node_lost", "preempted", "launch_error", "trainer_error"], "node_lost_after_seconds": 600.0}, "guard": {"non_finite_loss": "stop", "loss_spike": "ignore", "spike_factor": 3.0, "hang_seconds": 600.0}, "validation": {"interval_steps": 0, "batches": 8}, "env": {}}, "code_digest": null, "parent": null, "kind": "interval", "param_dtype": "float32", "model": {"family": "llama3", "size": "debug", "factory": null, "code": null, "arguments": {}, "block_classes": [], "plans": [], "initial_weights": null, "dim": null, "n_layers": null, "n_heads": null, "n_kv_heads": null, "ffn_dim": null, "vocab_size": null, "head_dim": null, "tied_embeddings": null, "rope_theta": null, "rope_factor": null, "norm_eps": null, "dropout": 0.0}, "seq_len": 128, "torch_version": "2.13.0", "save_seconds": 0.1, "files": [], "writers": []}','2026-01-01 00:00:00.000000',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'float32');
CREATE TABLE config_words (
	word VARCHAR(200) NOT NULL, 
	job_id VARCHAR(26) NOT NULL, 
	CONSTRAINT pk_config_words PRIMARY KEY (word, job_id), 
	CONSTRAINT fk_config_words_job_id_jobs FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);
CREATE TABLE deleted_notices (
	id INTEGER NOT NULL, 
	last_seq BIGINT NOT NULL, 
	CONSTRAINT pk_deleted_notices PRIMARY KEY (id)
);
INSERT INTO "deleted_notices" VALUES(1,0);
CREATE TABLE demands (
	"key" VARCHAR(64) NOT NULL, 
	shape TEXT NOT NULL, 
	reason TEXT, slots INTEGER NOT NULL, 
	CONSTRAINT pk_demands PRIMARY KEY ("key")
);
INSERT INTO "demands" VALUES('0e558d7b3f4b5f0817981361aee984cf71a9fc16c7811e000fa01552f465690a','[1,null,"auto",["checkpoints"],null,[],[],[],[],0]',NULL,1);
CREATE TABLE events (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	at DATETIME NOT NULL, 
	kind VARCHAR(40) NOT NULL, 
	job_id VARCHAR(26), 
	attempt INTEGER, 
	node VARCHAR(100), 
	actor VARCHAR(100) NOT NULL, 
	message TEXT NOT NULL, 
	data TEXT NOT NULL
);
INSERT INTO "events" VALUES(1,'2026-01-01 00:00:00.000000','submitted','01kdvdna00wns48n7pbwbpt9bn',NULL,NULL,'ada','tiny requests 1 slot as 1 rank','{"world_size":1,"layout":"1 rank","forked_from":null,"parts":[],"not_exact":[]}');
INSERT INTO "events" VALUES(2,'2026-01-01 00:00:00.000000','placed','01kdvdna00wns48n7pbwbpt9bn',1,NULL,'scheduler','Attempt 1 got 1 slot on node-1','{"layout":"1 rank","nodes":["node-1"],"spares":[],"parent_checkpoint_id":null,"start_step":0,"backfilled_before":null}');
INSERT INTO "events" VALUES(3,'2026-01-01 00:00:00.000000','claimed','01kdvdna00wns48n7pbwbpt9bn',1,'node-1','node-1','node-1 took on 1 slot','{}');
INSERT INTO "events" VALUES(4,'2026-01-01 00:00:00.000000','running','01kdvdna00wns48n7pbwbpt9bn',1,NULL,'trainer','tiny trains from step 0','{}');
INSERT INTO "events" VALUES(5,'2026-01-01 00:00:00.000000','stop_requested','01kdvdna00wns48n7pbwbpt9bn',1,NULL,'ada','Save and leave','{"reason":"","goes_on":false}');
INSERT INTO "events" VALUES(6,'2026-01-01 00:00:00.000000','node_ended','01kdvdna00wns48n7pbwbpt9bn',1,'node-1','node-1','the share of node-1 stopped','{"outcome":"stopped","failure":null}');
INSERT INTO "events" VALUES(7,'2026-01-01 00:00:00.000000','attempt_ended','01kdvdna00wns48n7pbwbpt9bn',1,NULL,'server','Attempt 1 stopped at step 9','{"outcome":"stopped","failure":null}');
INSERT INTO "events" VALUES(8,'2026-01-01 00:00:00.000000','job_ended','01kdvdna00wns48n7pbwbpt9bn',1,NULL,'server','tiny stopped','{"state":"stopped","reason":null}');
INSERT INTO "events" VALUES(9,'2025-12-31 23:59:55.000000','operation_queued','01kdvdna00wns48n7pbwbpt9bn',NULL,NULL,'ada','verify 01kdvdna00wns48n7pbwbpt9bn.a1.step-8','{"operation_id":"00000000000000000000000000","kind":"verify","checkpoint_id":"01kdvdna00wns48n7pbwbpt9bn.a1.step-8","reason":"the text {\"chore_id\":\"x\"} is no key"}');
INSERT INTO "events" VALUES(10,'2025-12-31 23:59:55.000000','operation_waiting','01kdvdna00wns48n7pbwbpt9bn',NULL,NULL,'ada','verify 01kdvdna00wns48n7pbwbpt9bn.a1.step-8','{"operation_id":"00000000000000000000000000","kind":"verify","checkpoint_id":"01kdvdna00wns48n7pbwbpt9bn.a1.step-8","waiting":"no node is online"}');
INSERT INTO "events" VALUES(11,'2025-12-31 23:59:55.000000','operation_started','01kdvdna00wns48n7pbwbpt9bn',NULL,NULL,'ada','verify 01kdvdna00wns48n7pbwbpt9bn.a1.step-8','{"operation_id":"00000000000000000000000000","kind":"verify","checkpoint_id":"01kdvdna00wns48n7pbwbpt9bn.a1.step-8","fence":1}');
INSERT INTO "events" VALUES(12,'2025-12-31 23:59:55.000000','operation_progress','01kdvdna00wns48n7pbwbpt9bn',NULL,NULL,'ada','verify 01kdvdna00wns48n7pbwbpt9bn.a1.step-8','{"operation_id":"00000000000000000000000000","kind":"verify","checkpoint_id":"01kdvdna00wns48n7pbwbpt9bn.a1.step-8","progress":{"doing":"reads","done":1,"total":10}}');
INSERT INTO "events" VALUES(13,'2025-12-31 23:59:55.000000','operation_ended','01kdvdna00wns48n7pbwbpt9bn',NULL,NULL,'ada','verify 01kdvdna00wns48n7pbwbpt9bn.a1.step-8','{"operation_id":"00000000000000000000000000","kind":"verify","checkpoint_id":"01kdvdna00wns48n7pbwbpt9bn.a1.step-8","state":"succeeded","message":"the text {\"chore_id\":\"x\"} is no key","ok":true}');
INSERT INTO "events" VALUES(14,'2026-01-01 00:00:00.000000','submitted','01kdvdna00pjeg16jmmrhgp87m',NULL,NULL,'ada','second requests 1 slot as 1 rank','{"world_size":1,"layout":"1 rank","forked_from":null,"parts":[],"not_exact":[]}');
INSERT INTO "events" VALUES(15,'2026-01-01 00:00:00.000000','placed','01kdvdna00pjeg16jmmrhgp87m',1,NULL,'scheduler','Attempt 1 got 1 slot on node-2','{"layout":"1 rank","nodes":["node-2"],"spares":[],"parent_checkpoint_id":null,"start_step":0,"backfilled_before":null}');
INSERT INTO "events" VALUES(16,'2026-01-01 00:00:00.000000','claimed','01kdvdna00pjeg16jmmrhgp87m',1,'node-2','node-2','node-2 took on 1 slot','{}');
INSERT INTO "events" VALUES(17,'2026-01-01 00:00:00.000000','running','01kdvdna00pjeg16jmmrhgp87m',1,NULL,'trainer','second trains from step 0','{}');
INSERT INTO "events" VALUES(18,'2026-01-01 00:00:00.000000','submitted','01kdvdna009xb62jjsf00b44qq',NULL,NULL,'ada','third requests 1 slot as 1 rank','{"world_size":1,"layout":"1 rank","forked_from":null,"parts":[],"not_exact":[]}');
CREATE TABLE failed_logins (
	address VARCHAR(100) NOT NULL, 
	begin_at DATETIME NOT NULL, 
	failures INTEGER NOT NULL, 
	CONSTRAINT pk_failed_logins PRIMARY KEY (address)
);
CREATE TABLE "holdings" (
	attempt_id VARCHAR(26) NOT NULL, 
	node VARCHAR(100) NOT NULL, 
	job_id VARCHAR(26) NOT NULL, 
	job_name VARCHAR(80) NOT NULL, 
	project VARCHAR(80) NOT NULL, 
	attempt INTEGER NOT NULL, 
	slots INTEGER NOT NULL, 
	since DATETIME NOT NULL, 
	until DATETIME NOT NULL, 
	spent TEXT, 
	spare BOOLEAN DEFAULT 0 NOT NULL, 
	CONSTRAINT pk_holdings PRIMARY KEY (attempt_id, node, since)
);
INSERT INTO "holdings" VALUES('01kdvdna00rfk05w7wqtyn3dmh','node-1','01kdvdna00wns48n7pbwbpt9bn','tiny','default',1,1,'2026-01-01 00:00:00.000000','2026-01-01 00:00:00.000000',NULL,0);
CREATE TABLE idempotency_keys (
	actor VARCHAR(100) NOT NULL, 
	"key" VARCHAR(200) NOT NULL, 
	request_digest VARCHAR(64) NOT NULL, 
	job_id VARCHAR(26) NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_idempotency_keys PRIMARY KEY (actor, "key")
);
CREATE TABLE imports (
	job_id VARCHAR(26) NOT NULL, 
	digest VARCHAR(71) NOT NULL, 
	run TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	received BIGINT NOT NULL, 
	CONSTRAINT pk_imports PRIMARY KEY (job_id), 
	CONSTRAINT fk_imports_job_id_jobs FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE, 
	CONSTRAINT uq_imports_digest UNIQUE (digest)
);
CREATE TABLE job_facts (
	job_id VARCHAR(26) NOT NULL, 
	facts TEXT NOT NULL, 
	CONSTRAINT pk_job_facts PRIMARY KEY (job_id), 
	CONSTRAINT fk_job_facts_job_id_jobs FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);
CREATE TABLE job_packs (
	job_id VARCHAR(26) NOT NULL, 
	pack_id VARCHAR(26) NOT NULL, 
	CONSTRAINT pk_job_packs PRIMARY KEY (job_id), 
	CONSTRAINT fk_job_packs_job_id_jobs FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE, 
	CONSTRAINT fk_job_packs_pack_id_packs FOREIGN KEY(pack_id) REFERENCES packs (id)
);
CREATE TABLE jobs (
	id VARCHAR(26) NOT NULL, 
	name VARCHAR(80) NOT NULL, 
	tags TEXT NOT NULL, 
	spec TEXT NOT NULL, 
	spec_digest VARCHAR(64) NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	desired VARCHAR(8) NOT NULL, 
	reason TEXT, 
	priority INTEGER NOT NULL, 
	pending TEXT, 
	queued_at DATETIME, 
	not_before DATETIME, 
	attempt INTEGER NOT NULL, 
	retries_used INTEGER NOT NULL, 
	world_size INTEGER NOT NULL, 
	layout VARCHAR(100) NOT NULL, 
	storage VARCHAR(64), 
	progress TEXT NOT NULL, 
	created_by VARCHAR(100) NOT NULL, 
	created_at DATETIME NOT NULL, 
	updated_at DATETIME NOT NULL, 
	started_at DATETIME, 
	ended_at DATETIME, forked_from VARCHAR(200), fork_parts TEXT, fork_step INTEGER, demand VARCHAR(64), env TEXT, project VARCHAR(80) DEFAULT 'default' NOT NULL, lasts_seconds FLOAT, lasts_on VARCHAR(8), min_world_size INTEGER, max_world_size INTEGER, size_change TEXT, chosen TEXT, spare_nodes INTEGER DEFAULT '0' NOT NULL, spare_slots INTEGER DEFAULT '0' NOT NULL, preemptible BOOLEAN DEFAULT '1' NOT NULL, imported_from VARCHAR(16), token_id VARCHAR(26), pace_digest VARCHAR(64), lasts_on_name TEXT, max_runtime_seconds FLOAT, leave_seconds FLOAT, 
	CONSTRAINT pk_jobs PRIMARY KEY (id), 
	CONSTRAINT ck_jobs_desired CHECK (desired IN ('run', 'stop', 'cancel')), 
	CONSTRAINT ck_jobs_state CHECK (state IN ('queued', 'starting', 'running', 'stopping', 'succeeded', 'failed', 'stopped', 'cancelled'))
);
INSERT INTO "jobs" VALUES('01kdvdna00wns48n7pbwbpt9bn','tiny','[]','{"name": "tiny", "description": "", "tags": [], "program": null, "model": {"family": "llama3", "size": "debug", "factory": null, "code": null, "arguments": {}, "block_classes": [], "plans": [], "initial_weights": null, "dim": null, "n_layers": null, "n_heads": null, "n_kv_heads": null, "ffn_dim": null, "vocab_size": null, "head_dim": null, "tied_embeddings": null, "rope_theta": null, "rope_factor": null, "norm_eps": null, "dropout": 0.0}, "data": {"source": "corpus", "corpus": "python-stdlib", "path": null, "text_field": "text", "split": "train", "tokenizer": "byte", "tokenizer_path": null, "document_masks": false, "max_tokens": null, "validation_fraction": 0.0, "prefetch_batches": 2}, "training": {"steps": 100, "seq_len": 128, "global_batch_size": 16, "micro_batch_size": 4, "seed": 0, "max_grad_norm": 1.0, "param_dtype": "float32", "weight_dtype": "float32", "reduce_dtype": "float32", "log_every_steps": "auto", "gc_freq": 50, "deterministic": false, "tensorboard": false}, "optimizer": {"name": "adamw", "lr": 0.0003, "beta1": 0.9, "beta2": 0.95, "eps": 1e-08, "weight_decay": 0.1, "no_decay": [], "state_dtype": "float32", "cpu_offload": false}, "lr_schedule": {"name": "warmup_stable_decay", "warmup_steps": 10, "warmup_tokens": null, "decay_steps": null, "decay_tokens": null, "decay_shape": "linear", "min_lr_ratio": 0.1, "total_steps": null, "total_tokens": null}, "parallelism": {"dp_replicate": 1, "dp_shard": -1, "reshard_after_forward": "default", "cp": 1, "cp_method": "allgather_kv", "tp": 1, "async_tp": false, "sequence_parallel": true, "loss_parallel": true, "pp": 1, "pp_schedule": "1F1B", "pp_microbatches": null, "pp_layers_per_stage": null, "pp_stage_modules": []}, "activation_checkpoint": {"mode": "none", "memory_budget": 0.5}, "compile": {"enabled": "auto", "backend": "inductor"}, "quantization": {"recipe": "none", "exclude": ["output"], "min_dim": 0}, "checkpoint": {"root": "checkpoints", "interval_steps": "auto", "interval_seconds": "auto", "preflight": true, "async_mode": "auto", "give_up_after_seconds": 3600.0, "writers": "auto", "staging_gib": 4.0, "keep_latest_k": 3, "keep_every_steps": 0, "keep_best_k": 0, "keep_best_metric": "validation/loss"}, "resources": {"world_size": 1, "nodes": null, "device": "auto", "priority": 0}, "retry": {"max_retries": 2, "backoff_seconds": 5.0, "on": ["hang", "node_lost", "preempted", "launch_error", "trainer_error"], "node_lost_after_seconds": 600.0}, "guard": {"non_finite_loss": "stop", "loss_spike": "ignore", "spike_factor": 3.0, "hang_seconds": 600.0}, "validation": {"interval_steps": 0, "batches": 8}, "env": {}}','284c1471b31f68f2d70dd892c676136b7d4c7d8d2768da6c2463b5c12fcbbaa1','stopped','stop',NULL,0,NULL,'2026-01-01 00:00:00.000000',NULL,1,0,1,'1 rank','root-1','{"phase":null,"step":9,"steps":100,"steps_reported":false,"answers":[],"loss":null,"tokens_per_second":null,"seconds_left":null,"heartbeat_at":"2026-01-01T00:00:00Z"}','ada','2026-01-01 00:00:00.000000','2026-01-01 00:00:00.000000','2026-01-01 00:00:00.000000','2026-01-01 00:00:00.000000',NULL,NULL,NULL,NULL,NULL,'default',NULL,NULL,NULL,NULL,NULL,NULL,0,0,1,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "jobs" VALUES('01kdvdna00pjeg16jmmrhgp87m','second','[]','{"name":"second","description":"","tags":[],"project":"default","program":null,"model":{"family":"llama3","size":"debug","factory":null,"code":null,"arguments":{},"block_classes":[],"plans":[],"initial_weights":null,"dim":null,"n_layers":null,"n_heads":null,"n_kv_heads":null,"ffn_dim":null,"vocab_size":null,"head_dim":null,"tied_embeddings":null,"rope_theta":null,"rope_factor":null,"norm_eps":null,"dropout":0.0},"data":{"source":"corpus","corpus":"python-stdlib","path":null,"text_field":"text","split":"train","tokenizer":"byte","tokenizer_path":null,"document_masks":false,"max_tokens":null,"validation_fraction":0.0,"prefetch_batches":2},"training":{"steps":100,"seq_len":128,"global_batch_size":16,"micro_batch_size":4,"seed":0,"max_grad_norm":1.0,"param_dtype":"float32","weight_dtype":"float32","reduce_dtype":"float32","log_every_steps":"auto","gc_freq":50,"deterministic":false,"tensorboard":false},"optimizer":{"name":"adamw","lr":0.0003,"beta1":0.9,"beta2":0.95,"eps":1e-8,"weight_decay":0.1,"no_decay":[],"state_dtype":"float32","cpu_offload":false},"lr_schedule":{"name":"warmup_stable_decay","warmup_steps":10,"warmup_tokens":null,"decay_steps":null,"decay_tokens":null,"decay_shape":"linear","min_lr_ratio":0.1,"total_steps":null,"total_tokens":null},"parallelism":{"dp_replicate":1,"dp_shard":-1,"reshard_after_forward":"default","cp":1,"cp_method":"allgather_kv","tp":1,"async_tp":false,"sequence_parallel":true,"loss_parallel":true,"pp":1,"pp_schedule":"1F1B","pp_microbatches":null,"pp_layers_per_stage":null,"pp_stage_modules":[]},"activation_checkpoint":{"mode":"none","memory_budget":0.5},"compile":{"enabled":"auto","backend":"inductor"},"quantization":{"recipe":"none","exclude":["output"],"min_dim":0},"checkpoint":{"root":"checkpoints","interval_steps":"auto","interval_seconds":"auto","preflight":true,"async_mode":"auto","give_up_after_seconds":3600.0,"writers":"auto","staging_gib":4.0,"keep_latest_k":3,"keep_every_steps":0,"keep_best_k":0,"keep_best_metric":"validation/loss"},"resources":{"world_size":1,"min_world_size":null,"max_world_size":null,"shrink_after_seconds":null,"nodes":null,"spare_nodes":0,"device":"auto","priority":0,"max_runtime_seconds":null,"node_selector":{},"exclude_nodes":[]},"retry":{"max_retries":2,"backoff_seconds":5.0,"on":["hang","node_lost","preempted","launch_error","trainer_error"],"node_lost_after_seconds":600.0},"guard":{"non_finite_loss":"stop","loss_spike":"ignore","spike_factor":3.0,"hang_seconds":600.0},"validation":{"interval_steps":0,"batches":8},"env":{}}','13c47d12bbb6722b9bb7ccbe12523e9a6d0cc84edaa4b4f10dbdc9e7a6767dcd','running','run',NULL,0,NULL,'2026-01-01 00:00:00.000000',NULL,1,0,1,'1 rank','root-1','{"phase":"training","step":3,"steps":100,"steps_reported":false,"answers":[],"loss":null,"tokens_per_second":null,"seconds_left":null,"heartbeat_at":"2026-01-01T00:00:00Z"}','ada','2026-01-01 00:00:00.000000','2026-01-01 00:00:00.000000','2026-01-01 00:00:00.000000',NULL,NULL,NULL,NULL,NULL,NULL,'default',NULL,NULL,NULL,NULL,NULL,NULL,0,0,1,NULL,'token of ada','44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a',NULL,NULL,NULL);
INSERT INTO "jobs" VALUES('01kdvdna009xb62jjsf00b44qq','third','[]','{"name":"third","description":"","tags":[],"project":"default","program":null,"model":{"family":"llama3","size":"debug","factory":null,"code":null,"arguments":{},"block_classes":[],"plans":[],"initial_weights":null,"dim":null,"n_layers":null,"n_heads":null,"n_kv_heads":null,"ffn_dim":null,"vocab_size":null,"head_dim":null,"tied_embeddings":null,"rope_theta":null,"rope_factor":null,"norm_eps":null,"dropout":0.0},"data":{"source":"corpus","corpus":"python-stdlib","path":null,"text_field":"text","split":"train","tokenizer":"byte","tokenizer_path":null,"document_masks":false,"max_tokens":null,"validation_fraction":0.0,"prefetch_batches":2},"training":{"steps":100,"seq_len":128,"global_batch_size":16,"micro_batch_size":4,"seed":0,"max_grad_norm":1.0,"param_dtype":"float32","weight_dtype":"float32","reduce_dtype":"float32","log_every_steps":"auto","gc_freq":50,"deterministic":false,"tensorboard":false},"optimizer":{"name":"adamw","lr":0.0003,"beta1":0.9,"beta2":0.95,"eps":1e-8,"weight_decay":0.1,"no_decay":[],"state_dtype":"float32","cpu_offload":false},"lr_schedule":{"name":"warmup_stable_decay","warmup_steps":10,"warmup_tokens":null,"decay_steps":null,"decay_tokens":null,"decay_shape":"linear","min_lr_ratio":0.1,"total_steps":null,"total_tokens":null},"parallelism":{"dp_replicate":1,"dp_shard":-1,"reshard_after_forward":"default","cp":1,"cp_method":"allgather_kv","tp":1,"async_tp":false,"sequence_parallel":true,"loss_parallel":true,"pp":1,"pp_schedule":"1F1B","pp_microbatches":null,"pp_layers_per_stage":null,"pp_stage_modules":[]},"activation_checkpoint":{"mode":"none","memory_budget":0.5},"compile":{"enabled":"auto","backend":"inductor"},"quantization":{"recipe":"none","exclude":["output"],"min_dim":0},"checkpoint":{"root":"checkpoints","interval_steps":"auto","interval_seconds":"auto","preflight":true,"async_mode":"auto","give_up_after_seconds":3600.0,"writers":"auto","staging_gib":4.0,"keep_latest_k":3,"keep_every_steps":0,"keep_best_k":0,"keep_best_metric":"validation/loss"},"resources":{"world_size":1,"min_world_size":null,"max_world_size":null,"shrink_after_seconds":null,"nodes":null,"spare_nodes":0,"device":"auto","priority":0,"max_runtime_seconds":null,"node_selector":{},"exclude_nodes":[]},"retry":{"max_retries":2,"backoff_seconds":5.0,"on":["hang","node_lost","preempted","launch_error","trainer_error"],"node_lost_after_seconds":600.0},"guard":{"non_finite_loss":"stop","loss_spike":"ignore","spike_factor":3.0,"hang_seconds":600.0},"validation":{"interval_steps":0,"batches":8},"env":{}}','b0d6cf3f5630fcce5b61dfa52aec8efbaac660e5890b98e552ec8d54b0bc96cd','queued','run',NULL,0,'{"cause":"submit","actor":"ada","overrides":{"parallelism":null,"micro_batch_size":null,"cpu_offload":null,"activation_checkpoint":null,"compile":null,"checkpoint":null,"resources":null,"retry":null,"steps":null},"layout":{"dp_replicate":1,"dp_shard":1,"cp":1,"tp":1,"pp":1},"checkpoint_id":null,"skip":[],"allow_code_change":false,"parent_named":false}','2026-01-01 00:00:00.000000',NULL,0,0,1,'1 rank',NULL,'{"phase":null,"step":0,"steps":100,"steps_reported":false,"answers":[],"loss":null,"tokens_per_second":null,"seconds_left":null,"heartbeat_at":null}','ada','2026-01-01 00:00:00.000000','2026-01-01 00:00:00.000000',NULL,NULL,NULL,NULL,NULL,NULL,NULL,'default',NULL,NULL,NULL,NULL,NULL,NULL,0,0,1,NULL,'token of ada','44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a',NULL,NULL,NULL);
CREATE TABLE leaders (
	name VARCHAR(40) NOT NULL, 
	holder VARCHAR(255), 
	epoch BIGINT NOT NULL, 
	expires_at DATETIME, 
	CONSTRAINT pk_leaders PRIMARY KEY (name)
);
CREATE TABLE liveness (
	id INTEGER NOT NULL, 
	beat_at DATETIME NOT NULL, 
	up_since DATETIME NOT NULL, 
	CONSTRAINT pk_liveness PRIMARY KEY (id)
);
CREATE TABLE log_blocks (
	attempt_id VARCHAR(26) NOT NULL, 
	rank INTEGER NOT NULL, 
	first_line BIGINT NOT NULL, 
	lines INTEGER NOT NULL, 
	size INTEGER NOT NULL, 
	content BLOB NOT NULL, 
	CONSTRAINT pk_log_blocks PRIMARY KEY (attempt_id, rank, first_line), 
	CONSTRAINT fk_log_blocks_attempt_id_attempts FOREIGN KEY(attempt_id) REFERENCES attempts (id) ON DELETE CASCADE
);
CREATE TABLE logs (
	attempt_id VARCHAR(26) NOT NULL, 
	rank INTEGER NOT NULL, 
	lines BIGINT NOT NULL, 
	stored_bytes BIGINT NOT NULL, 
	dropped_bytes BIGINT NOT NULL, 
	first_error_line BIGINT, 
	partial BLOB, 
	partial_size BIGINT NOT NULL, 
	CONSTRAINT pk_logs PRIMARY KEY (attempt_id, rank), 
	CONSTRAINT fk_logs_attempt_id_attempts FOREIGN KEY(attempt_id) REFERENCES attempts (id) ON DELETE CASCADE
);
CREATE TABLE measured_runs (
	attempt_id VARCHAR(26) NOT NULL, 
	device VARCHAR(8) NOT NULL, 
	device_name VARCHAR(200) NOT NULL, 
	ended_at DATETIME NOT NULL, 
	run TEXT NOT NULL, job_id VARCHAR(26), submitter VARCHAR(100), node VARCHAR(100), 
	CONSTRAINT pk_measured_runs PRIMARY KEY (attempt_id)
);
CREATE TABLE metric_chunks (
	series_id INTEGER NOT NULL, 
	first_step BIGINT NOT NULL, 
	last_step BIGINT NOT NULL, 
	count INTEGER NOT NULL, 
	non_finite INTEGER NOT NULL, 
	min FLOAT, 
	max FLOAT, 
	last FLOAT, 
	steps BLOB, 
	times BLOB NOT NULL, 
	numbers BLOB NOT NULL, step_sum FLOAT, 
	CONSTRAINT pk_metric_chunks PRIMARY KEY (series_id, first_step), 
	CONSTRAINT fk_metric_chunks_series_id_metric_series FOREIGN KEY(series_id) REFERENCES metric_series (id) ON DELETE CASCADE
);
CREATE TABLE metric_series (
	id INTEGER NOT NULL, 
	attempt_id VARCHAR(26) NOT NULL, 
	name VARCHAR(268) NOT NULL, 
	last_step BIGINT NOT NULL, 
	tail INTEGER NOT NULL, 
	CONSTRAINT pk_metric_series PRIMARY KEY (id), 
	CONSTRAINT fk_metric_series_attempt_id_attempts FOREIGN KEY(attempt_id) REFERENCES attempts (id) ON DELETE CASCADE, 
	CONSTRAINT uq_metric_series_attempt_id_name UNIQUE (attempt_id, name)
);
CREATE TABLE metric_tails (
	series_id INTEGER NOT NULL, 
	last_step BIGINT NOT NULL, 
	first_step BIGINT NOT NULL, 
	points BLOB NOT NULL, 
	CONSTRAINT pk_metric_tails PRIMARY KEY (series_id, last_step), 
	CONSTRAINT fk_metric_tails_series_id_metric_series FOREIGN KEY(series_id) REFERENCES metric_series (id) ON DELETE CASCADE
)
 WITHOUT ROWID

;
CREATE TABLE node_points (
	node VARCHAR(100) NOT NULL, 
	seconds INTEGER NOT NULL, 
	start BIGINT NOT NULL, 
	data TEXT NOT NULL, 
	CONSTRAINT pk_node_points PRIMARY KEY (node, seconds, start), 
	CONSTRAINT fk_node_points_node_nodes FOREIGN KEY(node) REFERENCES nodes (name) ON DELETE CASCADE
);
CREATE TABLE node_requests (
	id VARCHAR(26) NOT NULL, 
	source VARCHAR(31) NOT NULL, 
	purpose VARCHAR(8) NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	nodes INTEGER NOT NULL, 
	seconds FLOAT, 
	shape TEXT NOT NULL, 
	caused_by TEXT NOT NULL, 
	by_person BOOLEAN NOT NULL, 
	claimed_at DATETIME, 
	sent_at DATETIME, 
	sends INTEGER DEFAULT '0' NOT NULL, 
	cancel_at DATETIME, 
	ask VARCHAR(8), 
	ref VARCHAR(200), 
	engine_state VARCHAR(16) DEFAULT 'unknown' NOT NULL, 
	unknown_since DATETIME, 
	reason TEXT DEFAULT '' NOT NULL, 
	explanation TEXT, 
	starts_at DATETIME, 
	ends_at DATETIME, 
	results TEXT, 
	created_at DATETIME NOT NULL, 
	started_at DATETIME, 
	ended_at DATETIME, 
	CONSTRAINT pk_node_requests PRIMARY KEY (id), 
	CONSTRAINT ck_node_requests_state CHECK (state IN ('wanted', 'pending', 'running', 'leaving', 'ended')), 
	CONSTRAINT fk_node_requests_source_sources FOREIGN KEY(source) REFERENCES sources (name) ON DELETE CASCADE
);
CREATE TABLE nodes (
	name VARCHAR(100) NOT NULL, 
	address VARCHAR(255) NOT NULL, 
	hardware TEXT NOT NULL, 
	device VARCHAR(8) NOT NULL, 
	slots INTEGER NOT NULL, 
	roots TEXT NOT NULL, 
	version VARCHAR(50) NOT NULL, 
	registered_at DATETIME NOT NULL, 
	heartbeat_at DATETIME NOT NULL, 
	offline_since DATETIME, drain TEXT, notice TEXT, worker TEXT, protocol INTEGER DEFAULT '2' NOT NULL, sample TEXT, partitions TEXT DEFAULT '[]' NOT NULL, worker_labels TEXT DEFAULT '{}' NOT NULL, set_labels TEXT DEFAULT '{}' NOT NULL, withheld TEXT DEFAULT '{}' NOT NULL, trusted_since DATETIME, clock_skew_seconds FLOAT, clock_is_wrong BOOLEAN DEFAULT '0' NOT NULL, network_checked_at DATETIME, inbox VARCHAR(8) DEFAULT 'broker' NOT NULL, request_id VARCHAR(26), ends_at DATETIME, 
	CONSTRAINT pk_nodes PRIMARY KEY (name)
);
INSERT INTO "nodes" VALUES('node-1','node-1.test','{"device": "cpu", "slots": 4, "device_name": "test", "device_memory_bytes": 8589934592, "cores": 4, "memory_bytes": 34359738368, "isolation": "none"}','cpu',4,'{"checkpoints":"root-1","data":"root-2"}','0','2026-01-01 00:00:00.000000','2026-01-01 00:00:00.000000',NULL,NULL,NULL,'{"folder":"00000000000000000000000000000000","boot_id":"b007-0000"}',2,NULL,'[]','{}','{}','{}',NULL,NULL,0,NULL,'broker',NULL,NULL);
INSERT INTO "nodes" VALUES('node-2','node-2.test','{"device":"cpu","slots":2,"device_name":"test","device_memory_bytes":8589934592,"cores":2,"memory_bytes":17179869184,"isolation":"none","accelerators":[],"driver":null}','cpu',2,'{"checkpoints":"root-1","data":"root-2"}','0','2026-01-01 00:00:00.000000','2026-01-01 00:00:00.000000',NULL,NULL,NULL,'{"folder":"00000000000000000000000000000000","boot_id":"b007-0000"}',3,NULL,'[]','{}','{}','{}',NULL,NULL,0,NULL,'broker',NULL,NULL);
CREATE TABLE notices (
	job_id VARCHAR(26) NOT NULL, 
	kind VARCHAR(40) NOT NULL, 
	part VARCHAR(200) NOT NULL, 
	seq BIGINT NOT NULL, 
	at DATETIME NOT NULL, 
	attempt INTEGER, 
	node VARCHAR(100), 
	data TEXT NOT NULL, 
	CONSTRAINT pk_notices PRIMARY KEY (job_id, kind, part)
);
INSERT INTO "notices" VALUES('01kdvdna00pjeg16jmmrhgp87m','phase','',1,'2026-01-01 00:00:00.000000',1,'node-2','{"phase":"starting","step":null,"time":null}');
CREATE TABLE operations (
	id VARCHAR(26) NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	job_id VARCHAR(26) NOT NULL, 
	job_name VARCHAR(80) NOT NULL, 
	checkpoint_id VARCHAR(200), 
	actor VARCHAR(100) NOT NULL, 
	reason TEXT NOT NULL, 
	task TEXT NOT NULL, 
	storage VARCHAR(64), 
	node VARCHAR(100), 
	fence INTEGER NOT NULL, 
	sent_at DATETIME, 
	given_at DATETIME, 
	waiting TEXT, 
	awaited_since DATETIME, 
	last_report_at DATETIME, 
	progress TEXT, 
	outcome TEXT, 
	created_at DATETIME NOT NULL, 
	started_at DATETIME, 
	ended_at DATETIME, failing TEXT, not_before DATETIME, 
	CONSTRAINT pk_operations PRIMARY KEY (id), 
	CONSTRAINT ck_operations_state CHECK (state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled'))
);
INSERT INTO "operations" VALUES('00000000000000000000000000','verify','queued','01kdvdna00wns48n7pbwbpt9bn','llama','01kdvdna00wns48n7pbwbpt9bn.a1.step-8','ada','','{"kind":"verify","job_id":"01kdvdna00wns48n7pbwbpt9bn","root":"data","paths":["j/a1/step-8"]}',NULL,NULL,0,NULL,NULL,'no node is online',NULL,NULL,NULL,NULL,'2025-12-31 23:59:55.000000',NULL,NULL,NULL,NULL);
INSERT INTO "operations" VALUES('00000000000000000000000001','scrub','running','01kdvdna00wns48n7pbwbpt9bn','llama','01kdvdna00wns48n7pbwbpt9bn.a1.step-8','ada','','{"kind":"scrub","job_id":"01kdvdna00wns48n7pbwbpt9bn","root":"data","paths":["j/a1/step-8"]}',NULL,'node-1',2,NULL,NULL,NULL,NULL,'2025-12-31 23:59:55.000000','{"doing":"reads","done":1,"total":10}',NULL,'2025-12-31 23:59:55.000000','2025-12-31 23:59:55.000000',NULL,NULL,NULL);
INSERT INTO "operations" VALUES('00000000000000000000000002','delete','succeeded','01kdvdna00wns48n7pbwbpt9bn','llama','01kdvdna00wns48n7pbwbpt9bn.a1.step-8','ada','','{"kind":"delete","job_id":"01kdvdna00wns48n7pbwbpt9bn","root":"data","paths":["j/a1/step-8"]}',NULL,'node-1',1,NULL,NULL,NULL,NULL,NULL,NULL,'{"outcome":"succeeded","message":"3 files","files":3}','2025-12-31 23:59:55.000000',NULL,'2025-12-31 23:59:55.000000',NULL,NULL);
CREATE TABLE pack_blocks (
	pack_id VARCHAR(26) NOT NULL, 
	number INTEGER NOT NULL, 
	content BLOB NOT NULL, 
	CONSTRAINT pk_pack_blocks PRIMARY KEY (pack_id, number), 
	CONSTRAINT fk_pack_blocks_pack_id_packs FOREIGN KEY(pack_id) REFERENCES packs (id) ON DELETE CASCADE
);
CREATE TABLE packs (
	id VARCHAR(26) NOT NULL, 
	digest VARCHAR(71), 
	size BIGINT NOT NULL, 
	created_by VARCHAR(100) NOT NULL, 
	named_at DATETIME NOT NULL, token_id VARCHAR(26), 
	CONSTRAINT pk_packs PRIMARY KEY (id), 
	CONSTRAINT uq_packs_digest UNIQUE (digest)
);
CREATE TABLE periodic_tasks (
	name VARCHAR(80) NOT NULL, 
	stored_at DATETIME NOT NULL, 
	runs INTEGER NOT NULL, 
	failures INTEGER NOT NULL, 
	seconds FLOAT NOT NULL, 
	lag_seconds FLOAT NOT NULL, 
	CONSTRAINT pk_periodic_tasks PRIMARY KEY (name)
);
CREATE TABLE pilots (
	request_id VARCHAR(26) NOT NULL, 
	number INTEGER NOT NULL, 
	secret_hash VARCHAR(64) NOT NULL, 
	named VARCHAR(200), 
	addresses TEXT DEFAULT '[]' NOT NULL, 
	joined VARCHAR(200), 
	gone_at DATETIME, 
	CONSTRAINT pk_pilots PRIMARY KEY (request_id, number), 
	CONSTRAINT fk_pilots_request_id_node_requests FOREIGN KEY(request_id) REFERENCES node_requests (id) ON DELETE CASCADE, 
	CONSTRAINT uq_pilots_secret_hash UNIQUE (secret_hash)
);
CREATE TABLE project_usage (
	project VARCHAR(80) NOT NULL, 
	month VARCHAR(7) NOT NULL, 
	slot_seconds FLOAT NOT NULL, 
	CONSTRAINT pk_project_usage PRIMARY KEY (project, month)
);
CREATE TABLE projects (
	name VARCHAR(80) NOT NULL, 
	description TEXT NOT NULL, 
	weight FLOAT NOT NULL, 
	max_slots INTEGER, 
	slot_hours_per_month FLOAT, 
	created_by VARCHAR(100) NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_projects PRIMARY KEY (name)
);
INSERT INTO "projects" VALUES('default','Jobs that name no project',1.0,NULL,NULL,'server','2026-11-30 01:40:12.851216');
CREATE TABLE rank_progress (
	attempt_id VARCHAR(26) NOT NULL, 
	rank INTEGER NOT NULL, 
	step BIGINT NOT NULL, 
	CONSTRAINT pk_rank_progress PRIMARY KEY (attempt_id, rank), 
	CONSTRAINT fk_rank_progress_attempt_id_attempts FOREIGN KEY(attempt_id) REFERENCES attempts (id) ON DELETE CASCADE
);
CREATE TABLE rank_steps (
	attempt_id VARCHAR(26) NOT NULL, 
	step BIGINT NOT NULL, 
	staged_at DATETIME NOT NULL, 
	data TEXT NOT NULL, 
	CONSTRAINT pk_rank_steps PRIMARY KEY (attempt_id, step), 
	CONSTRAINT fk_rank_steps_attempt_id_attempts FOREIGN KEY(attempt_id) REFERENCES attempts (id) ON DELETE CASCADE
);
CREATE TABLE requests (
	id VARCHAR(26) NOT NULL, 
	attempt_id VARCHAR(26) NOT NULL, 
	request TEXT NOT NULL, 
	answer TEXT, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_requests PRIMARY KEY (id), 
	CONSTRAINT fk_requests_attempt_id_attempts FOREIGN KEY(attempt_id) REFERENCES attempts (id) ON DELETE CASCADE
);
CREATE TABLE sessions (
	hash VARCHAR(64) NOT NULL, 
	token_id VARCHAR(26) NOT NULL, 
	created_at DATETIME NOT NULL, 
	expires_at DATETIME NOT NULL, 
	CONSTRAINT pk_sessions PRIMARY KEY (hash), 
	CONSTRAINT fk_sessions_token_id_tokens FOREIGN KEY(token_id) REFERENCES tokens (id) ON DELETE CASCADE
);
CREATE TABLE shells (
	id VARCHAR(26) NOT NULL, 
	attempt_id VARCHAR(26) NOT NULL, 
	node VARCHAR(100) NOT NULL, 
	rank INTEGER, 
	argv TEXT NOT NULL, 
	terminal TEXT, 
	seconds FLOAT NOT NULL, 
	created_by VARCHAR(100) NOT NULL, 
	created_at DATETIME NOT NULL, 
	client_at DATETIME NOT NULL, 
	started_at DATETIME, 
	ended_at DATETIME, 
	exit_code INTEGER, 
	failure TEXT, 
	closed BOOLEAN NOT NULL, 
	output BLOB NOT NULL, 
	output_start BIGINT NOT NULL, 
	input BLOB NOT NULL, 
	input_start BIGINT NOT NULL, 
	input_ended BOOLEAN NOT NULL, token_id VARCHAR(26), 
	CONSTRAINT pk_shells PRIMARY KEY (id), 
	CONSTRAINT fk_shells_attempt_id_attempts FOREIGN KEY(attempt_id) REFERENCES attempts (id) ON DELETE CASCADE
);
CREATE TABLE sources (
	name VARCHAR(31) NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	shape TEXT NOT NULL, 
	limits TEXT NOT NULL, 
	request_seconds FLOAT, 
	idle_seconds FLOAT NOT NULL, 
	leave_seconds FLOAT NOT NULL, 
	check_addresses BOOLEAN NOT NULL, 
	version VARCHAR(50) NOT NULL, 
	heard_at DATETIME NOT NULL, 
	is_away BOOLEAN DEFAULT '0' NOT NULL, 
	listed_at DATETIME, 
	error TEXT, 
	needs_login TEXT, 
	paused_at DATETIME, 
	paused_by VARCHAR(100), 
	pause_reason TEXT, 
	registered_at DATETIME NOT NULL, 
	CONSTRAINT pk_sources PRIMARY KEY (name)
);
CREATE TABLE step_digests (
	attempt_id VARCHAR(26) NOT NULL, 
	step BIGINT NOT NULL, 
	digest VARCHAR(32) NOT NULL, 
	CONSTRAINT pk_step_digests PRIMARY KEY (attempt_id, step), 
	CONSTRAINT fk_step_digests_attempt_id_attempts FOREIGN KEY(attempt_id) REFERENCES attempts (id) ON DELETE CASCADE
)
 WITHOUT ROWID

;
CREATE TABLE stragglers (
	attempt_id VARCHAR(26) NOT NULL, 
	rank INTEGER NOT NULL, 
	step BIGINT NOT NULL, 
	node VARCHAR(100) NOT NULL, 
	slot INTEGER NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	factor FLOAT NOT NULL, 
	share FLOAT NOT NULL, 
	found_at DATETIME NOT NULL, 
	gone_at DATETIME, 
	CONSTRAINT pk_stragglers PRIMARY KEY (attempt_id, rank, step), 
	CONSTRAINT fk_stragglers_attempt_id_attempts FOREIGN KEY(attempt_id) REFERENCES attempts (id) ON DELETE CASCADE
);
CREATE TABLE tokens (
	id VARCHAR(26) NOT NULL, 
	name VARCHAR(100) NOT NULL, 
	kind VARCHAR(8) NOT NULL, 
	hash VARCHAR(64) NOT NULL, 
	node VARCHAR(100), 
	created_at DATETIME NOT NULL, 
	expires_at DATETIME, 
	last_used_at DATETIME, 
	revoked_at DATETIME, source VARCHAR(31), 
	CONSTRAINT pk_tokens PRIMARY KEY (id), 
	CONSTRAINT uq_tokens_hash UNIQUE (hash)
);
CREATE INDEX ix_idempotency_keys_created_at ON idempotency_keys (created_at);
CREATE INDEX ix_jobs_name_id ON jobs (name, id);
CREATE INDEX ix_jobs_state_id ON jobs (state, id);
CREATE INDEX ix_attempts_state ON attempts (state);
CREATE INDEX ix_attempt_nodes_node_state ON attempt_nodes (node, state);
CREATE INDEX ix_checkpoints_job_id_attempt_step ON checkpoints (job_id, attempt, step);
CREATE INDEX ix_requests_attempt_id ON requests (attempt_id);
CREATE INDEX ix_jobs_search ON jobs (id, state, name, tags);
CREATE INDEX ix_jobs_forked_from ON jobs (forked_from);
CREATE INDEX ix_operations_state_id ON operations (state, id);
CREATE INDEX ix_operations_job_id_id ON operations (job_id, id);
CREATE INDEX ix_operations_checkpoint_id_id ON operations (checkpoint_id, id);
CREATE INDEX ix_notices_seq ON notices (seq);
CREATE INDEX ix_notices_at ON notices (at);
CREATE INDEX ix_events_job_id_id ON events (job_id, id);
CREATE INDEX ix_jobs_project_id ON jobs (project, id);
CREATE INDEX ix_stragglers_node_found_at ON stragglers (node, found_at);
CREATE INDEX ix_attempts_ended_at ON attempts (ended_at);
CREATE INDEX ix_attempt_nodes_holding ON attempt_nodes (node) WHERE state != 'ended';
CREATE INDEX ix_holdings_unsettled ON holdings (job_id) WHERE spent IS NULL;
CREATE INDEX ix_holdings_until ON holdings (until);
CREATE INDEX ix_holdings_job_id ON holdings (job_id);
CREATE INDEX ix_jobs_queue ON jobs (state, demand, priority, queued_at, id, project, world_size, spare_slots);
CREATE INDEX ix_node_requests_source_id ON node_requests (source, id);
CREATE INDEX ix_node_requests_ended_at ON node_requests (ended_at);
CREATE INDEX ix_node_requests_open ON node_requests (source) WHERE state != 'ended';
CREATE INDEX ix_nodes_request_id ON nodes (request_id);
CREATE INDEX ix_shells_attempt_id_node ON shells (attempt_id, node);
CREATE INDEX ix_packs_named_at ON packs (named_at);
CREATE INDEX ix_job_packs_pack_id ON job_packs (pack_id);
CREATE INDEX ix_nodes_registered_at ON nodes (registered_at);
CREATE INDEX ix_artifacts_job_id_kind ON artifacts (job_id, kind, id);
CREATE INDEX ix_artifacts_content_id ON artifacts (content_id);
CREATE INDEX ix_artifacts_job_id ON artifacts (job_id, id);
CREATE INDEX ix_measured_runs_ended_at ON measured_runs (ended_at);
CREATE INDEX ix_measured_runs_device_device_name ON measured_runs (device, device_name);
CREATE INDEX ix_shells_token_id ON shells (token_id);
CREATE INDEX ix_packs_token_id ON packs (token_id);
CREATE INDEX ix_checkpoints_attempt_id ON checkpoints (attempt_id);
CREATE INDEX ix_attempts_pace ON attempts (pace_digest, ended_at);
CREATE INDEX ix_config_words_job_id ON config_words (job_id);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('events',18);
COMMIT;
