"""Input from outside: users' YAML files, HTTP servers and proxies, secrets, terminal output."""
