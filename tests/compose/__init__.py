"""The Compose files of the deployment, run by Podman: `make test-compose`."""
