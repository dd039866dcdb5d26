# Provisioner: reaches a cluster's API from inside; no torch, no database.
FROM python:3.12-slim
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1
WORKDIR /src
COPY pyproject.toml constraints.txt LICENSE README.md ./
COPY library library
COPY provisioner provisioner
RUN pip install -c constraints.txt -e ./library -e '.[provisioner,kubernetes]' \
    && useradd --system --uid 10003 trainyard \
    && install -d -o trainyard -m 0700 /var/lib/trainyard
USER trainyard
CMD ["python", "-m", "provisioner"]
