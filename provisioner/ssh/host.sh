# Functions that provisioner/ssh runs on a machine: `ssh HOST sh` reads this file and one call on
# stdin. Secrets are here-documents, so that no process has one as an argument.
#
#   <base>/change.lock       held briefly by calls that change files
#   <base>/requests/<id>/    pilot (index and number of nodes), source, bundle, secrets, environment,
#                            instance, starts, ends, cancelled, gone (first seen gone), log,
#                            lock (held by the pilot's init)
#   <base>/ended/<id>/       the folder of a request whose end was reported
#   <base>/data/             data folders of pilots ($TMPDIR)
#   <base>/bundles/<id>/     ready (once it is installed), venv/
#
# A request's folder without `instance` is a reservation, whose pilot has never started.
set -u
umask 077
LC_ALL=C
export LC_ALL
KEEP_DAYS=7    # time for which logs of ended pilots, and bundles that they used, are kept
LIST_MINUTES=60 # time for which an ended pilot is listed even if cancelled: reports may be lost
NETWORK='nfs*|lustre|gpfs|ceph|fuse*|cifs|smb*|afs|beegfs|9p'

fail() {
  echo "$*" >&2
  exit 1
}

# enter BASE: change to the folder BASE; create it if necessary. Refuse a folder of another user, or
# one that hosts share, because it must contain the state of this host alone.
enter() {
  case $1 in "~/"*) base=$HOME/${1#"~/"} ;; *) base=$1 ;; esac
  mkdir -p "$base/requests" "$base/ended" "$base/data" "$base/bundles" || fail "cannot create $base"
  [ -O "$base" ] || fail "base=$base belongs to another user"
  kind=$(stat -f -c %T "$base")
  eval "case \$kind in $NETWORK) fail \"base=\$base lies on \$kind; name a local folder\" ;; esac"
  cd "$base" || fail "cannot enter $base"
  base=$PWD
  boot=$(cat /proc/sys/kernel/random/boot_id) || fail "no boot id"
  command -v flock > /dev/null || fail "no flock (package util-linux)"
}

change() {
  exec 8> "$base/change.lock"
  flock -w 20 8 || fail "$base/change.lock is held"
}

# started PID: print a process' start time, in clock ticks after boot; fail if it has ended.
started() {
  stat=$(cat "/proc/$1/stat" 2> /dev/null) || return 1
  # The name of the program is in parentheses, and may itself hold spaces and parentheses.
  set -- ${stat##*) }
  case $1 in [ZXx]) return 1 ;; esac
  echo "${20}"
}

# first_process REQUEST: print the pid of the pilot's init while the init lives.
first_process() {
  IFS=. read -r its_boot pid its_start < "requests/$1/instance" || return 1
  [ "$its_boot" = "$boot" ] && [ "$(started "$pid")" = "$its_start" ] && echo "$pid"
}

# processes REQUEST: print the pids of all processes whose environment has the request's folder,
# because init, worker, supervisors and ranks inherit PILOT_FOLDER.
processes() {
  for environ in $(grep -lsF -e "$base/requests/$1/" /proc/[0-9]*/environ); do
    environ=${environ#/proc/}
    started "${environ%/environ}" > /dev/null && echo "${environ%/environ}"
  done
}

# state REQUEST: print reserved, starting, running or gone. `gone` is proved in one of two ways: the
# host has rebooted; or the lock is free, the recorded process has ended, and no process of the
# request is left.
state() {
  if [ ! -s "requests/$1/instance" ]; then
    if flock -n "requests/$1/lock" true; then echo reserved; else echo starting; fi
    return
  fi
  IFS=. read -r its_boot _ < "requests/$1/instance"
  if [ "$its_boot" = "$boot" ] && { ! flock -n "requests/$1/lock" true ||
    first_process "$1" > /dev/null || [ -n "$(processes "$1")" ]; }; then
    echo running
  else
    echo gone
  fi
}

# look GRACE BUNDLE PYTHON...: print the state of this host. Also end pilots whose time is over, and
# kill pilots GRACE seconds after they were cancelled.
look() {
  grace=$1 bundle=$2
  shift 2
  # The address of this call comes first: a machine may have more addresses than are kept.
  echo "addresses $(echo "${SSH_CONNECTION:-}" | cut -d ' ' -f 3) $(hostname -I 2> /dev/null)"
  for folder in requests/*/; do
    id=${folder#requests/} id=${id%/}
    [ -e "$folder/pilot" ] || continue
    state=$(state "$id")
    case $state in
      running) ! overdue "$id" "$grace" || state=leaving ;;
      gone)
        rm -f "$folder/secrets"
        [ -e "$folder/gone" ] || : > "$folder/gone"
        ;;
    esac
    echo "request $id $(cat "$folder/source") $(cat "$folder/pilot") $state" \
      "$(cat "$folder/starts" 2> /dev/null || echo -)" "$(cat "$folder/ends" 2> /dev/null || echo -)" \
      "$(cat "$folder/instance" 2> /dev/null || echo -)" \
      "$([ "$state" = gone ] && tail -n 1 "$folder/log" 2> /dev/null)"
  done
  for python in "$@"; do
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2> /dev/null) &&
      echo "python $version $(command -v "$python")"
  done
  [ -z "$bundle" ] || [ ! -e "bundles/$bundle/ready" ] || echo "installed"
}

# overdue REQUEST GRACE: whether a running pilot must leave; end or kill the pilot when due.
overdue() {
  now=$(date +%s)
  ends=$(cat "requests/$1/ends" 2> /dev/null)
  [ -z "$ends" ] || [ "$now" -lt "$ends" ] || [ -e "requests/$1/cancelled" ] || end "$1"
  cancelled=$(cat "requests/$1/cancelled" 2> /dev/null)
  [ -n "$cancelled" ] || return 1
  [ "$now" -lt $((cancelled + $2)) ] || for pid in $(processes "$1"); do kill -KILL "$pid"; done
}

# reserve REQUEST SOURCE INDEX NODES BUNDLE: reserve this host for a pilot. Here-documents: secrets
# on 3, environment on 4. Print `reserved INDEX`, also for a repeated call, or `busy REQUEST`.
reserve() {
  change
  if [ ! -e "requests/$1/pilot" ]; then
    for folder in requests/*/; do
      other=${folder#requests/} other=${other%/}
      [ -e "$folder/pilot" ] || continue
      [ "$(state "$other")" = gone ] || { echo "busy $other"; return; }
    done
    find requests ended -mindepth 1 -maxdepth 1 -mtime +$KEEP_DAYS -exec rm -rf {} +
    rm -rf data/* requests/.new # the data of an ended pilot are not needed
    for folder in bundles/*/; do
      used=${folder#bundles/} used=${used%/}
      [ "$used" = "$5" ] || grep -qsxF -e "$used" requests/*/bundle ended/*/bundle || rm -rf "$folder"
    done
    mkdir requests/.new
    cat <&3 > requests/.new/secrets
    cat <&4 > requests/.new/environment
    echo "$2" > requests/.new/source
    echo "$5" > requests/.new/bundle
    : > requests/.new/lock
    echo "$3 $4" > requests/.new/pilot
    mv requests/.new "requests/$1" || fail "cannot write requests/$1"
  fi
  echo "reserved $(cat "requests/$1/pilot")"
}

# start REQUEST PYTHON SECONDS: start the pilot of a reservation, once.
start() {
  change
  [ -e "requests/$1/pilot" ] || fail "request $1 has no reservation here"
  [ -e "requests/$1/cancelled" ] && fail "request $1 was cancelled here"
  if [ ! -s "requests/$1/instance" ]; then
    # The lock belongs to the pilot's init and the worker, which inherit descriptor 9.
    setsid sh -c "$LAUNCH" sh "$base" "$1" "$2" "$3" \
      < /dev/null >> "requests/$1/log" 2>&1 8>&- 9> "requests/$1/lock" &
    left=100
    until [ -s "requests/$1/instance" ]; do
      left=$((left - 1))
      [ $left -gt 0 ] || fail "the pilot did not begin: $(tail -n 3 "requests/$1/log")"
      sleep 0.1
    done
  fi
  echo "started $(cat "requests/$1/instance")"
}

# First process of a pilot; `exec` keeps its pid and start time.
LAUNCH='
flock -n 9 || exit 1
cd "$1/requests/$2" || exit 1
. ./environment
stat=$(cat /proc/$$/stat)
base=$1 python=$3 seconds=$4
case $python in bundles/*) python=$base/$python ;; esac
set -- ${stat##*) }
TRAINYARD_PILOT_INSTANCE=$(cat /proc/sys/kernel/random/boot_id).$$.${20}
TRAINYARD_JOIN_TOKEN_FILE=$PWD/secrets
TMPDIR=$base/data
# The worker passes variables to supervisors and ranks, except those with its own prefixes.
PILOT_FOLDER=$PWD/
export TRAINYARD_PILOT_INSTANCE TRAINYARD_JOIN_TOKEN_FILE TMPDIR PILOT_FOLDER
unset LC_ALL
date +%s > starts
if [ -n "$seconds" ]; then
  TRAINYARD_PILOT_ENDS_AT=$(($(cat starts) + seconds))
  export TRAINYARD_PILOT_ENDS_AT
  echo "$TRAINYARD_PILOT_ENDS_AT" > ends
fi
# Renamed last: with this file the pilot has started, and it is never started again.
echo "$TRAINYARD_PILOT_INSTANCE" > instance.part && mv instance.part instance
exec "$python" -m worker pilot
'

# release REQUEST: remove a reservation; keep a pilot that has started.
release() {
  change
  [ ! -e "requests/$1/pilot" ] || [ "$(state "$1")" != reserved ] || rm -rf "requests/$1"
}

# end REQUEST: order the pilot to save and leave; remove a reservation.
end() {
  [ -e "requests/$1/pilot" ] || return 0
  case $(state "$1") in
    reserved) rm -rf "requests/$1" ;;
    gone) ;;
    *) leave "$1" ;;
  esac
}

# leave REQUEST: send SIGTERM, on which a pilot saves and leaves.
leave() {
  [ -e "requests/$1/cancelled" ] || date +%s > "requests/$1/cancelled"
  if pid=$(first_process "$1"); then
    kill -TERM "$pid"
    return 0
  fi
  # Without an init only the supervisors remain; each saves and leaves on SIGTERM.
  for pid in $(processes "$1"); do
    tr '\0' ' ' < "/proc/$pid/cmdline" | grep -q ' -m worker supervise ' && kill -TERM "$pid"
  done
  return 0
}

# cancel REQUEST: end the request; stop listing it if it has been gone for LIST_MINUTES.
cancel() {
  change
  if [ -n "$(find "requests/$1/gone" -mmin +$LIST_MINUTES 2> /dev/null)" ]; then
    mv "requests/$1" "ended/$1"
  else
    end "$1"
  fi
}

# explain REQUEST: print the last lines of the log of the pilot.
explain() {
  for folder in requests ended; do
    [ ! -e "$folder/$1/log" ] || tail -n 20 "$folder/$1/log"
  done
}

# install ID PYTHON: install the uploaded bundle ID, once.
install() {
  [ -e "bundles/$1/ready" ] && return
  exec 7> "bundles/$1.lock"
  flock -w 1200 7 || fail "bundles/$1.lock is held"
  [ -e "bundles/$1/ready" ] && return
  cd "bundles/$1" || fail "the bundle was not uploaded"
  rm -rf wheels venv
  tar -xf bundle.tar || fail "bundle.tar is damaged"
  echo "$1  SHA256SUMS" | sha256sum --quiet --strict -c - > /dev/null 2>&1 &&
    sha256sum --quiet --strict -c SHA256SUMS > /dev/null || fail "bundle.tar is damaged"
  "$2" -m venv --without-pip venv || fail "$2 -m venv failed"
  # pip runs from its own wheel: many machines lack it, and ensurepip too.
  mv wheels/pip-*.whl pip.whl
  venv/bin/python pip.whl/pip --isolated --disable-pip-version-check install \
    --quiet --no-index --no-deps --no-cache-dir wheels/*.whl || fail "pip failed"
  rm -rf wheels pip.whl bundle.tar ./*.part
  : > ready
}
