#!/bin/sh
# Stands for `ssh`: each machine is a folder of the folder that -F names, which becomes its HOME.
#   <host>/         the machine; without it there is no route
#   <host>.error    what ssh prints before it fails
#   <host>.settings what `ssh -G` prints
#   <host>.lost     name of a call whose answer is lost, once
#   <host>.slow     the machine does not answer
#   <host>.calls    a line a call: the command of the remote machine
while :; do
  case $1 in
    -o) shift 2 ;;
    -F) network=$2; shift 2 ;;
    -G) query=1; shift ;;
    -T) shift ;;
    --) shift; break ;;
    *) echo "fake ssh has no $1" >&2; exit 255 ;;
  esac
done
host=$1 command=${2:-}
if [ -n "${query:-}" ]; then cat "$network/$host.settings"; exit; fi
[ -e "$network/$host.error" ] && { cat "$network/$host.error" >&2; exit 255; }
[ -d "$network/$host" ] || { echo "ssh: connect to host $host port 22: No route to host" >&2; exit 255; }
[ -e "$network/$host.slow" ] && exec sleep 600
echo "$command" >> "$network/$host.calls"
HOME=$network/$host PATH=$network/$host/bin:$PATH
export HOME PATH
cd "$HOME" || exit 255
echo "Welcome to $host"
lost=$(cat "$network/$host.lost" 2> /dev/null)
[ -n "$lost" ] || exec sh -c "$command"
cat > "$network/$host.stdin"
if ! grep -q "^$lost " "$network/$host.stdin"; then exec sh -c "$command" < "$network/$host.stdin"; fi
rm "$network/$host.lost"
sh -c "$command" < "$network/$host.stdin" > /dev/null
echo "Connection to $host closed by remote host." >&2
exit 255
