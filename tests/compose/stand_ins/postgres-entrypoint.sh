#!/bin/sh
# What the official script does with the variables that docker-compose.yml sets: it reads the password
# as root, goes on as `postgres`, and makes the database with a server that listens on its socket alone.
set -e
if [ -n "$POSTGRES_PASSWORD_FILE" ]; then
    POSTGRES_PASSWORD=$(cat "$POSTGRES_PASSWORD_FILE")
    export POSTGRES_PASSWORD
    unset POSTGRES_PASSWORD_FILE
fi
if [ "$(id -u)" = 0 ]; then
    install -d -o postgres -g postgres -m 0700 "$PGDATA"
    exec setpriv --reuid postgres --regid postgres --init-groups "$0" "$@"
fi
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    password=$(mktemp)
    printf '%s\n' "$POSTGRES_PASSWORD" > "$password"
    initdb --username="$POSTGRES_USER" --pwfile="$password" --auth-local=trust --auth-host=scram-sha-256
    rm "$password"
    echo 'host all all all scram-sha-256' >> "$PGDATA/pg_hba.conf"
    pg_ctl -o "-c listen_addresses=''" -w start
    createdb --username="$POSTGRES_USER" "$POSTGRES_DB" 2> /dev/null || true
    pg_ctl -m fast -w stop
fi
exec "$@" -c 'listen_addresses=*'
