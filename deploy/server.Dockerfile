# API, scheduler and migrations: no torch. `make wheels` first: the dashboard lies inside the wheel.
FROM python:3.12-slim
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1
WORKDIR /wheels
COPY dist/trainyard_*.whl dist/constraints.txt ./
RUN pip install -c constraints.txt ./trainyard_library-*.whl "$(ls ./trainyard_programs-*.whl)[server]" \
    && groupadd --gid 10001 trainyard && useradd --system --uid 10001 --gid 10001 trainyard \
    && install -d -o trainyard -m 0700 /var/lib/trainyard
USER trainyard
WORKDIR /var/lib/trainyard
EXPOSE 8470
CMD ["python", "-m", "server", "api"]
