# Provisioner: reaches a cluster's API from inside; no torch, no database. `make wheels` first.
FROM python:3.12-slim
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1
WORKDIR /wheels
COPY dist/trainyard_*.whl dist/constraints.txt ./
RUN pip install -c constraints.txt ./trainyard_library-*.whl "$(ls ./trainyard_programs-*.whl)[provisioner,kubernetes]" \
    && useradd --system --uid 10003 trainyard \
    && install -d -o trainyard -m 0700 /var/lib/trainyard
USER trainyard
WORKDIR /var/lib/trainyard
CMD ["python", "-m", "provisioner"]
