# Debian's HAProxy with the user and the folders of the official image.
FROM localhost/debian:trixie
RUN apt-get update \
    && apt-get install -y --no-install-recommends haproxy \
    && rm -rf /var/lib/apt/lists/* \
    && mkdir -p /usr/local/etc/haproxy
STOPSIGNAL SIGUSR1
USER haproxy
WORKDIR /var/lib/haproxy
CMD ["haproxy", "-W", "-db", "-f", "/usr/local/etc/haproxy/haproxy.cfg"]
