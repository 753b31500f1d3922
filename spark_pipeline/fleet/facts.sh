# What a machine is, as plain text for facts.py: sections of raw output, each headed by "## name".
# $1: the weights directory; it need not exist yet. $2: where sysfs is mounted, /sys by default (for tests).
# Nothing here needs root, and nothing that is missing is an error.
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
section() { printf '## %s\n' "$1"; }
first() { cat "$1" 2>/dev/null || echo '?'; }
# free bytes of the file system of $1, or of its nearest parent that exists
free() {
    path=$1
    while [ -n "$path" ] && [ ! -e "$path" ]; do path=${path%/*}; done
    df -Pk "${path:-/}" 2>/dev/null | tail -n 1
}

# One function, called last: half a script that arrived does nothing, and no command below eats the rest of it.
main() {
    sys=${2:-/sys}
    section hostname; uname -n
    section machine_id; first /etc/machine-id
    section architecture; uname -m
    section kernel; uname -r
    section cores; nproc
    section memory; grep -E '^(MemTotal|MemAvailable):' /proc/meminfo
    section weights_free; free "$1"
    section docker
    if docker=$(docker info --format '{{.ServerVersion}} {{.DockerRootDir}}' 2>/dev/null) && [ -n "${docker#* }" ]; then
        printf '%s\n' "$docker"
        section docker_free; free "${docker#* }"
    else
        section docker_problem; { docker version --format '{{.Server.Version}}' >/dev/null; } 2>&1 | tail -n 3
    fi
    section addresses; ip -o -4 addr show 2>/dev/null
    section links
    for link in $sys/class/net/*; do
        [ -e "$link/mtu" ] && printf '%s %s %s\n' "${link##*/}" "$(first "$link/mtu")" "$(first "$link/carrier")"
    done
    section infiniband
    for device in $sys/class/infiniband/*; do
        for port in "$device"/ports/*; do
            [ -e "$port/state" ] || continue
            for attribute in "$port"/gid_attrs/ndevs/*; do
                index=${attribute##*/}
                { read -r netdev <"$attribute"; } 2>/dev/null || continue  # an unused index cannot be read
                printf '%s %s %s|%s|%s|%s|%s\n' "${device##*/}" "${port##*/}" "$index" "$netdev" \
                    "$(first "$port/state")" "$(first "$port/gids/$index")" "$(first "$port/gid_attrs/types/$index")"
            done
        done
    done
    section gpu
    gpu=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null) && printf '%s\n' "$gpu"
    section python; python3 -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null
    section rsync; command -v rsync
    section user; id -un; id -u; id -g
    section groups; id -Gn
    section end
}
main "$@" </dev/null
