#!/bin/sh
# Stands for the interpreter of a machine: `-m worker pilot` waits for SIGTERM, and has a process of
# its own that outlives it, as a supervisor does, until the file `leave` is there.
case $1 in -c) exec "$REAL_PYTHON" "$@" ;; esac
echo "pilot begins: $*"
env > seen
trap 'echo "pilot leaves"; : > leave' TERM
[ -e "$HOME/stubborn" ] && trap '' TERM
: > ready
(
  trap '' TERM
  while [ ! -e leave ]; do sleep 0.05; done
) &
while [ ! -e leave ]; do sleep 0.05; done
wait
