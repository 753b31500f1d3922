"""Images that are made on a node in a second: 23 MB with a Python that runs, and a vLLM that is only looked at."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile

from spark_pipeline.fleet.host import Host

LABEL = "spark_pipeline_tests=image"
PYTHON = "sp-test/python:1"
ENGINE = {
    "vllm/__init__.py": "print('importing it would print this'); raise SystemExit(3)",
    "vllm/engine/arg_utils.py": 'parser.add_argument("--nnodes")',
    "vllm-0.99.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: vllm\nVersion: 0.99.0",
    "ray/__init__.py": "",
    "ray-2.53.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: ray\nVersion: 2.53.0",
    "bin/vllm": "#!/bin/false",
    "bin/ray": "#!/bin/false",
}

# A Python that runs, 23 MB, out of the node's own files; whoever runs the image's own entrypoint gets nowhere.
_BASE = r"""
set -eu
root=$(mktemp -d); trap 'rm -rf "$root"' EXIT
for file in $(ldd /usr/bin/python3.11 | grep -o '/[^ ]*'); do
    mkdir -p "$root$(dirname "$file")"; cp -L "$file" "$root$file"
done
mkdir -p "$root/usr/bin" "$root/usr/lib" "$root/lib64"
cp -L /lib64/ld-linux-x86-64.so.2 "$root/lib64/"
cp -L /usr/bin/python3.11 "$root/usr/bin/python3"
cp -r /usr/lib/python3.11 "$root/usr/lib/"
find "$root" -name __pycache__ -prune -exec rm -rf {} +
tar -cf - -C "$root" . | docker import -c "LABEL $1" -c 'ENV PATH=/usr/bin' -c 'ENTRYPOINT ["/bin/false"]' - "$2"
"""
# A shell, and that Python where only its full name finds it.
_OFF_PATH = r"""
set -eu
root=$(mktemp -d); trap 'rm -rf "$root"' EXIT
for file in $(ldd /usr/bin/python3.11 /bin/dash | grep -o '/[^ :]*\.so[^ :]*'); do
    mkdir -p "$root$(dirname "$file")"; cp -L "$file" "$root$file"
done
mkdir -p "$root/opt/venv/bin" "$root/opt/venv/lib" "$root/usr/bin" "$root/lib64"
cp -L /lib64/ld-linux-x86-64.so.2 "$root/lib64/"
cp -L /usr/bin/python3.11 "$root/opt/venv/bin/python3"; cp -L /bin/dash "$root/usr/bin/sh"
cp -r /usr/lib/python3.11 "$root/opt/venv/lib/"
find "$root" -name __pycache__ -prune -exec rm -rf {} +
tar -cf - -C "$root" . | docker import -c "LABEL $1" -c 'ENV PATH=/usr/bin' - "$2"
"""
_LARGER = r"""
set -eu
context=$(mktemp -d); trap 'rm -rf "$context"' EXIT
head -c 300000000 /dev/zero >"$context/large"
printf 'FROM %s\nCOPY large /\n' "$1" >"$context/Dockerfile"
docker build --quiet --tag "$1" "$context"
"""
# $1 reference, $2 the Dockerfile, $3... files as path=text
_BUILD = r"""
set -eu
context=$(mktemp -d); trap 'rm -rf "$context"' EXIT
reference=$1; printf '%s\n' "$2" >"$context/Dockerfile"; shift 2
for file; do
    path=$context/${file%%=*}; mkdir -p "$(dirname "$path")"; printf '%s\n' "${file#*=}" >"$path"
    case $path in */bin/*) chmod 755 "$path" ;; esac
done
docker build --quiet --tag "$reference" "$context"
"""


def build(host: Host, reference: str, *layers: dict[str, str], base: str = PYTHON, extra: str = "") -> None:
    """An image of `base` and one layer for each of `layers` (path -> text)."""
    copies = "\n".join(f"COPY {number} /opt/image" for number in range(len(layers)))
    dockerfile = f"FROM {base}\nENV PYTHONPATH=/opt/image PATH=/usr/bin:/opt/image/bin\n{copies}\n{extra}"
    files = [f"{number}/{path}={text}" for number, layer in enumerate(layers) for path, text in layer.items()]
    host.run(["sh", "-c", _BUILD, "sh", reference, dockerfile, *files], timeout=120)


def make_base(host: Host, reference: str = PYTHON, label: str = LABEL) -> None:
    """The image that all others here are made from; each test file that runs beside others has its own label."""
    host.run(["sh", "-c", _BASE, "sh", label, reference], timeout=120)


def make_python_off_path(host: Host, reference: str, label: str = LABEL) -> None:
    """An image whose Python is no word on PATH, as in some images with a virtual environment; it has a shell."""
    host.run(["sh", "-c", _OFF_PATH, "sh", label, reference], timeout=120)


def make_hostname_only(host: Host, reference: str, label: str = LABEL) -> None:
    """An image with one text file in it, and no Python."""
    script = 'tar -cf - -C /etc hostname | docker import -c "LABEL $1" - "$2"'
    host.run(["sh", "-c", script, "sh", label, reference], timeout=60)


def make_larger(host: Host, reference: str) -> None:
    """Put 300 MB on top of an image: they take a while to be saved and loaded."""
    host.run(["sh", "-c", _LARGER, "sh", reference], timeout=180)


def archive(reference: str, architecture: str) -> bytes:
    """An image with nothing in it, as `docker load` takes it."""
    empty = io.BytesIO()
    tarfile.open(fileobj=empty, mode="w").close()
    key, _, value = LABEL.partition("=")
    config = {
        "architecture": architecture,
        "os": "linux",
        "config": {"Labels": {key: value}},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(empty.getvalue()).hexdigest()]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [reference], "Layers": ["layer.tar"]}]
    members = {
        "config.json": json.dumps(config).encode(),
        "layer.tar": empty.getvalue(),
        "manifest.json": json.dumps(manifest).encode(),
    }
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return made.getvalue()


def forget(host: Host, label: str = LABEL) -> None:
    """Remove every image of these tests. One that others are built on goes only after them, and Docker's list does
    not tell which of two from the same second that is: so in rounds."""
    argv = ["docker", "image", "ls", "--all", "--quiet", "--no-trunc", "--filter", f"label={label}"]
    for _ in range(5):
        for image in dict.fromkeys(host.run(argv, timeout=60).stdout.split()):
            host.run(["docker", "image", "rm", "--force", image], timeout=60, check=False)
    assert host.run(argv, timeout=60).stdout == ""
