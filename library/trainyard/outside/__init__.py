"""What others write or operate: YAML files of people, HTTP servers and the proxies before them."""
