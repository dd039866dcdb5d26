# API, scheduler and migrations: no torch.
FROM node:22-slim AS web
WORKDIR /src/web
COPY web/package.json web/package-lock.json ./
RUN npm ci
COPY web ./
RUN npm run build

FROM python:3.12-slim
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1
WORKDIR /src
COPY pyproject.toml constraints.txt LICENSE README.md ./
COPY library library
COPY server server
COPY migrations migrations
COPY --from=web /src/web/dist web/dist
# Installed in place: the server finds the dashboard's files by their path relative to its package.
RUN pip install -c constraints.txt -e ./library -e '.[server]' \
    && groupadd --gid 10001 trainyard && useradd --system --uid 10001 --gid 10001 trainyard \
    && install -d -o trainyard -m 0700 /var/lib/trainyard
USER trainyard
EXPOSE 8470
CMD ["python", "-m", "server", "api"]
