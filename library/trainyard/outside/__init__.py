"""Input from outside: YAML files of people, HTTP servers and proxies, secrets, terminal output."""
