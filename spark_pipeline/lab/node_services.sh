#!/bin/sh
# The services of a node, inside its own root: identity, keys, sshd, Docker Engine; then reap what ends.
# Arguments: CGROUP INSECURE_REGISTRY
set -eu
cgroup=$1 registry=$2

cp /run/seed/hostname /etc/hostname
cp /run/seed/hosts /etc/hosts
install -m 600 /run/seed/host_key /etc/ssh/ssh_host_ed25519_key
install -m 644 /run/seed/host_key.pub /etc/ssh/ssh_host_ed25519_key.pub
install -d -m 700 -o spark -g spark /home/spark/.ssh
install -m 600 -o spark -g spark /run/seed/authorized_keys /home/spark/.ssh/authorized_keys
if [ -e /run/seed/own_key ]; then
    install -m 600 -o spark -g spark /run/seed/own_key /home/spark/.ssh/id_ed25519
    install -m 644 -o spark -g spark /run/seed/own_key.pub /home/spark/.ssh/id_ed25519.pub
fi
install -d -m 755 -o spark -g spark /home/spark/models
rm -rf /run/seed

/usr/sbin/sshd -D -e &
# No bridge and no rules: containers use the node's own network. cgroupfs: no systemd here.
dockerd --cgroup-parent="/$cgroup" --exec-opt native.cgroupdriver=cgroupfs \
    --bridge=none --iptables=false --ip-forward=false --ip-masq=false \
    --storage-driver=overlay2 --insecure-registry "$registry" --log-level=warn &

# A service that ends stays ended, as a test of its failure needs it; `up` starts the node anew.
# `wait` also reaps the orphans that every first process of a PID namespace inherits.
while :; do
    wait || true
    sleep 1
done
