#!/bin/sh
# As root it hands the data to the user `redis` and starts again as this user, without any capability.
set -e
if [ "$1" = redis-server ] && [ "$(id -u)" = 0 ]; then
    chown -R redis .
    exec setpriv --reuid redis --regid redis --clear-groups --no-new-privs \
        --inh-caps=-all --ambient-caps=-all --bounding-set=-all "$0" "$@"
fi
umask 0077
exec "$@"
