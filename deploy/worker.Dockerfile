# Worker and trainer: torch with CUDA, no web stack, no database. `make wheels` first.
FROM python:3.12-slim
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1
# gcc: torch.compile and Triton build their launchers with it. git: provenance of own code.
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev git \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /wheels
COPY dist/trainyard_*.whl dist/constraints.txt ./
# torch as pinned, in its build for this CUDA: a node's driver must support it (13.0: 580 or newer).
# `cpu`: pip is configured for an index with builds without CUDA.
ARG CUDA=13.0
RUN pip install -c constraints.txt ./trainyard_library-*.whl "$(ls ./trainyard_programs-*.whl)[worker,trainer,s3]" \
    && python -c "import torch; found = torch.version.cuda or 'cpu'; assert found == '$CUDA', found" \
    && useradd --system --uid 10002 trainyard \
    && install -d -o trainyard -m 0700 /var/lib/trainyard \
    && install -d -o trainyard /srv/checkpoints /srv/data
USER trainyard
WORKDIR /var/lib/trainyard
CMD ["python", "-m", "worker", "init"]
