#!/bin/sh
# First process of a node: builds the node's view of the machine, then becomes its services.
# Arguments: NAME ROOT SERVICES CGROUP INSECURE_REGISTRY
# It runs in fresh mount, UTS, IPC and PID namespaces, inside the node's network namespace, in the folder of its disk.
set -eu
umask 022 # of the node, not of who called `up`
name=$1 root=$2 services=$3

mount --make-rprivate /
mount -t overlay "$name" -o "index=off,lowerdir=$root,upperdir=upper,workdir=work" merged
# A plain folder: overlay2, the engine's storage driver, cannot sit on an overlay.
mkdir -p merged/var/lib/docker
mount --bind docker merged/var/lib/docker

mount -t proc proc merged/proc
mount -t sysfs sysfs merged/sys
# Its own, and another one at each start, as of a machine of its own: what was true before a power cut may not be.
cat /proc/sys/kernel/random/uuid >boot_id
mount --bind boot_id merged/proc/sys/kernel/random/boot_id
mount --rbind /sys/fs/cgroup merged/sys/fs/cgroup

mount -t tmpfs -o size=64k,mode=755 dev merged/dev
for device in null zero full random urandom tty; do
    : >"merged/dev/$device"
    mount --bind "/dev/$device" "merged/dev/$device"
done
mkdir merged/dev/pts merged/dev/shm merged/dev/mqueue
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts merged/dev/pts
ln -s pts/ptmx merged/dev/ptmx
ln -s /proc/self/fd merged/dev/fd
ln -s /proc/self/fd/0 merged/dev/stdin
ln -s /proc/self/fd/1 merged/dev/stdout
ln -s /proc/self/fd/2 merged/dev/stderr
mount -t tmpfs -o mode=1777 shm merged/dev/shm
mount -t mqueue mqueue merged/dev/mqueue
mount -t tmpfs -o mode=755 run merged/run
mount -t tmpfs -o mode=1777 tmp merged/tmp
mkdir -p merged/run/lock merged/run/sshd

hostname "$name"
cp "$services" merged/run/node_services.sh
cp -r seed merged/run/seed

# pivot_root, not chroot: under chroot `docker exec` fails with `chdir to cwd ("/workspace") set in config.json failed`.
cd merged
pivot_root . mnt
cd /
umount -l /mnt
shift 3
exec /bin/sh /run/node_services.sh "$@"
