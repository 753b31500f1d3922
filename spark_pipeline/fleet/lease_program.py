"""Runs on the head of a fleet, by `python3 -`: takes, renews and gives back the right to change the fleet.

Standard library only, any Python 3.8 or later; prints one JSON document. Nothing else of the pipeline is on the node.

The lease is one small file, changed under an exclusive flock and replaced by rename. It belongs to one run; every step
of that run adds a holder of its own, so that the end of one step does not take the lease from another. Time is the
node's own CLOCK_BOOTTIME: clocks of several orchestrators need not agree, and a clock that is set changes nothing.
After a reboot every lease is void: whatever its holder did there has ended too.

An expired lease is free for everybody, but its record stays until somebody takes it: as long as nobody came between,
a holder that was silent for too long (a network that was away) may renew it and go on.
"""

import fcntl
import json
import os
import sys
import time
from pathlib import Path


def main(action, directory, request):
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "lease.json"
    with (directory / "lease.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        granted, lease = ACTIONS[action](read(path), request)
        write(path, lease)
    if is_live(lease):
        lease["left_seconds"] = max(lease["holders"].values()) - now()
    print(json.dumps({"granted": granted, "lease": lease if is_live(lease) else None}))


def take(lease, request):
    """Held by nobody, or by this run: add the holder."""
    if is_live(lease) and lease["run_id"] != request["run_id"]:
        return False, lease
    if lease is None or lease["run_id"] != request["run_id"]:
        lease = {key: request[key] for key in ("fleet", "owner", "run_id")}
        lease.update(boot_id=boot_id(), since=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), holders={})
    lease["holders"][request["holder"]] = now() + request["ttl_seconds"]
    return True, lease


def renew(lease, request):
    """Only a holder that is still written there, expired or not, may go on: else somebody took the lease meanwhile,
    whether it is held now or was given back, and may have changed the fleet."""
    if lease is None or request["holder"] not in lease["holders"]:
        return False, lease
    return take(lease, request)


def give_back(lease, request):
    if lease is None:
        return True, None
    lease["holders"].pop(request["holder"], None)
    return True, lease if lease["holders"] else None


def look(lease, _request):
    return True, lease


ACTIONS = {"take": take, "renew": renew, "give_back": give_back, "look": look}


def now():
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def is_live(lease):
    return lease is not None and max(lease["holders"].values()) > now()


def boot_id():
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def read(path):
    """The lease with its holders, expired ones too; None when there is none, it is torn, or is from before a reboot."""
    try:
        lease = json.loads(path.read_text())
        if lease["boot_id"] != boot_id():
            return None
        lease["holders"] = {holder: float(end) for holder, end in lease["holders"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return lease if lease["holders"] else None


def write(path, lease):
    if lease is None:
        if path.exists():
            path.unlink()
        return
    part = path.with_name("lease.json.part")
    part.write_text(json.dumps(lease))
    os.replace(part, path)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]).expanduser(), json.loads(sys.argv[3]))
