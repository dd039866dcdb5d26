#!/bin/sh
# Become a machine: change the root of this namespace of mounts to ROOT, in which each PATH shows at its
# own place, and stay. Not chroot: what joins the namespace of a container would get this machine's root.
# usage: machine.sh ROOT PATH...
set -e
root=$1
shift
mount --bind "$root" "$root" # a root is a mount
# crun refuses a hierarchy of cgroup 1 with controllers of cgroup 2 next to it.
umount /sys/fs/cgroup/unified 2> /dev/null || true
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/run"
mkdir -p "$root/dev/mqueue" "$root/run/former"
mountpoint -q "$root/dev/mqueue" || mount -t mqueue mqueue "$root/dev/mqueue"
cp /etc/resolv.conf "$root/etc/resolv.conf"
for path in "$@"; do
    if [ -d "$path" ]; then mkdir -p "$root$path"; else touch "$root$path"; fi
    mount --bind "$path" "$root$path"
done
cd "$root"
pivot_root . run/former
umount --lazy /run/former
echo ready
exec sleep infinity
