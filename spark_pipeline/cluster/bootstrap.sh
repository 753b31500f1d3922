# The first process of every rank's container, handed to `sh -c`: no file of a foreign image is relied upon.
# $1: ray-head | ray-worker | mp      $2: rendezvous address      $3: its port      then: the words of `ray start`.
#
# It joins Ray where there is one, waits until it is told what to serve, and becomes the engine: so the container's
# log, state and exit status are the engine's own.
set -eu
mode=$1 address=$2 port=$3
shift 3
dir=/tmp/spark_pipeline
mkdir -p "$dir/config"

case $mode in
ray-head)
    # Names whose value is right on one node only; vLLM must not copy the driver's to the workers.
    printf '%s\n' "$SPARK_PIPELINE_PER_NODE_NAMES" >"$dir/config/ray_non_carry_over_env_vars.json"
    "$@"
    ;;
ray-worker)
    until python3 -c 'import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 2)' \
        "$address" "$port" 2>/dev/null; do
        sleep 0.3
    done
    exec "$@"
    ;;
esac

until [ -e "$dir/serve.sh" ]; do sleep 0.2; done
exec sh "$dir/serve.sh"
