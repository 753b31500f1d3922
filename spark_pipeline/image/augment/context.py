"""What `docker build` is given: the Dockerfile, our programs, the wheels. Works with Docker's old builder and BuildKit.

The wheels come into the image in a layer of their own, which the next step empties again: the old builder can mount
nothing into a step, and copying what was installed from a second stage would hand folders that exist in the base to
root. The price is their size, once, on the way to each peer.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

from spark_pipeline.image.augment.augmentation import (
    LABEL_ADDED,
    LABEL_BASE,
    LABEL_DONOR,
    LABEL_KEY,
    LABEL_REASON,
    OWN_NAME,
    Augmentation,
    AugmentKind,
    Side,
)
from spark_pipeline.image.augment.wheels import wheel_file

_INSIDE = Path(__file__).parent / "inside"
_PROGRAMS = {
    AugmentKind.RAY: ("install_ray.py", "report.py", "snapshot.py"),
    AugmentKind.GRAFT: ("graft.py", "report.py", "snapshot.py"),
}
_FOLDER = "augment"  # in the context
_PLACE = "/spark-pipeline-augment"  # in the build; gone at its end
_ROOT = ("", "0", "root", "0:0", "root:root")
# `localhost/`: should the node lack it, no public registry is asked for a name that anybody could register there.
_SOURCE_NAME = "localhost/spark-pipeline/augment-source"


def source_tag(side: Side) -> str:
    """The name that the Dockerfile begins with: BuildKit takes no image by its id, and a declared tag can move."""
    return f"{_SOURCE_NAME}:{side.fingerprint[:16]}"


def sides(augmentation: Augmentation) -> tuple[Side, ...]:
    """The images that take part."""
    return (augmentation.base, *((augmentation.donor,) if augmentation.donor else ()))


def tag_commands(augmentation: Augmentation) -> list[tuple[str, ...]]:
    """The names that the Dockerfile uses, as plans show them (the build tags by id)."""
    return [("docker", "tag", side.declared, source_tag(side)) for side in sides(augmentation)]


def building(key: str) -> str:
    """Value of LABEL_KEY in every image and container on the way; the finished image has the key itself."""
    return f"building-{key}"


def dockerfile(augmentation: Augmentation) -> str:
    """The Dockerfile. Entrypoint, command, work directory, environment and user stay the base's."""
    base, donor = augmentation.base, augmentation.donor
    stage = _Stage(augmentation.key)
    if donor is None:
        lines = [*stage.begin(base), f"COPY {_FOLDER} {_PLACE}", stage.run(base, "install_ray.py")]
    else:
        lines = [
            *(*stage.begin(base, "listing"), f"COPY {_FOLDER} {_PLACE}", stage.run(base, "graft.py", "list")),
            *(*stage.begin(donor, "donor"), f"COPY --from=listing {_PLACE} {_PLACE}"),
            *(stage.run(donor, "graft.py", "collect"), *stage.begin(base)),
            *(f"COPY --from=donor {_PLACE} {_PLACE}", stage.run(base, "graft.py", "apply")),
        ]
    end = [] if base.user in _ROOT else [f"USER {base.user}"]
    return "\n".join([*lines, *end, ""])


class _Stage:
    """Lines of a stage of the Dockerfile."""

    def __init__(self, key: str) -> None:
        self._key = key

    def begin(self, side: Side, name: str = "") -> list[str]:
        named = f" AS {name}" if name else ""
        user = [] if side.user in _ROOT else ["USER 0"]
        return [f"FROM {source_tag(side)}{named}", f"LABEL {LABEL_KEY}={building(self._key)}", *user]

    def run(self, side: Side, program: str, *words: str) -> str:
        """Without a shell: the image may have none."""
        return "RUN " + json.dumps([side.python, "-B", f"{_PLACE}/{program}", *words])


def labels(augmentation: Augmentation) -> dict[str, str]:
    """What the finished image says of itself."""
    found = {
        LABEL_KEY: augmentation.key,
        LABEL_BASE: augmentation.base.fingerprint,
        LABEL_ADDED: " ".join(augmentation.added),
        LABEL_REASON: augmentation.reason,
    }
    return found | ({LABEL_DONOR: augmentation.donor.fingerprint} if augmentation.donor else {})


def build_command(augmentation: Augmentation) -> tuple[str, ...]:
    """`docker build` of a context that comes on standard input."""
    words = [word for key, value in labels(augmentation).items() for word in ("--label", f"{key}={value}")]
    # A user's own default builder may be a container or another machine: it sees no image of this engine, and keeps
    # what it builds to itself. Older engines do not look at the variable.
    docker = ("env", "BUILDX_BUILDER=default", "docker", "build")
    return (*docker, "--network", "none", "--force-rm", *words, "--tag", augmentation.tag, "-")


def tag_of(augmentation: Augmentation) -> str:
    """The image's name: 16 hex digits over all that decides what is in it. The reason does not: an image that is
    the same must not be built, sent and started anew for a word."""
    nameless = augmentation.model_copy(update={"tag": ""})
    identity = [
        *(side.fingerprint for side in sides(augmentation)),
        *(wheel.sha256 for wheel in augmentation.wheels),
        json.dumps(augmentation.entries, sort_keys=True),
        dockerfile(nameless),
        *(_program(name) for name in _PROGRAMS[augmentation.kind]),
    ]
    return f"{OWN_NAME}:{hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]}"


def context(augmentation: Augmentation, cache_dir: Path) -> bytes:
    """The build context as a tar stream; equal for equal records."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        _add(tar, "Dockerfile", dockerfile(augmentation).encode())
        _add(tar, f"{_FOLDER}/order.json", json.dumps(_order(augmentation), indent=1).encode())
        for name in _PROGRAMS[augmentation.kind]:
            _add(tar, f"{_FOLDER}/{name}", _program(name).encode())
        for wheel in augmentation.files:
            _add(tar, f"{_FOLDER}/wheels/{wheel.filename}", wheel_file(cache_dir, wheel).read_bytes())
    return made.getvalue()


def _order(augmentation: Augmentation) -> dict[str, object]:
    """What the programs are to do."""
    if augmentation.donor is not None:
        return {
            "entries": augmentation.entries,
            "base_directory": augmentation.base.directory,
            "donor_directory": augmentation.donor.directory,
        }
    installer = augmentation.installer
    return {
        "wheels": [wheel.filename for wheel in augmentation.wheels],
        "installer": installer.filename if installer else "",
        "expected": {wheel.name: wheel.version for wheel in augmentation.wheels},
        "programs": ["ray"],
    }


def _program(name: str) -> str:
    return (_INSIDE / name).read_text(encoding="utf-8")


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), 0o644
    tar.addfile(member, io.BytesIO(content))
