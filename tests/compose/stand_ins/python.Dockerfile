# Debian's Python, by the names of the official image and with the same few packages more.
FROM localhost/debian:bookworm
RUN apt-get update \
    && apt-get install -y --no-install-recommends netbase python3 python3-pip tzdata \
    && rm -rf /var/lib/apt/lists/* /usr/lib/python3*/EXTERNALLY-MANAGED \
    && ln -s python3 /usr/bin/python
CMD ["python"]
