"""Runs on the head, as `python3 - ORDER`: one `docker save`, without the layers the targets have, into their
`docker load`. Standard library only.

ORDER is JSON: `references` to save; `leave_out`, {chain id: diff id} of the layers that every target has; `targets`,
{node: words of the command that loads from its standard input}.

Standard output is one JSON document a line: `{"read": bytes, "sent": bytes}` every second, so that a broken connection
is noticed here, and at the end `{"done": {node: {"status": ..., "said": ...}}, "read": ..., "sent": ..., "left_out":
layers}`, or `{"error": ...}` when the image could not be read.

Docker writes two layouts. Newer engines name a layer `blobs/sha256/<diff id>`. Up to 24 they write `<v1 id>/json`, then
`<v1 id>/layer.tar`; that id is a hash over the json and the layer's chain id (moby image/v1/imagev1.go, CreateID), so
each chain id that may be left out is tried, and what cannot be identified is sent.
"""

import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
import threading

CHUNK = 1 << 20
CLASSIC = re.compile(r"([0-9a-f]{64})/(json|layer\.tar)")
BLOB = re.compile(r"blobs/sha256/([0-9a-f]{64})")


class Fan:
    """A file that writes to every target that still takes bytes."""

    def __init__(self, pipes):
        self.pipes = dict(pipes)
        self.sent = 0

    def write(self, data):
        for name, pipe in list(self.pipes.items()):
            try:
                pipe.write(data)
            except OSError:  # its loader ended; what it said is read at the end
                del self.pipes[name]
        if not self.pipes:
            raise BrokenPipeError("no target takes the image any more")
        self.sent += len(data)
        return len(data)

    def close(self):
        for pipe in self.pipes.values():
            try:
                pipe.close()
            except OSError:
                continue


def go_json(value):
    """As Go's encoding/json writes it: keys as they came, no blanks, <, > and & escaped."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def chain_of(v1_json, chains):
    """The chain id, among `chains`, of the layer that this v1 json belongs to; None if it is none of them."""
    config = json.loads(v1_json)
    identity = config.pop("id")
    if "parent" in config:
        config["parent"] = "sha256:" + config["parent"]
    without_os = {key: value for key, value in config.items() if key != "os"}
    for chain in chains:
        # The engine adds `os` to all but the topmost layer's json after it has made the id.
        for hashed in (without_os, config):
            members = sorted({**hashed, "layer_id": chain}.items())
            text = "{" + ",".join(go_json(key) + ":" + go_json(value) for key, value in members) + "}"
            if hashlib.sha256(text.encode()).hexdigest() == identity:
                return chain
    return None


class Filter:
    """Decides member by member; the order is Docker's: a layer's json comes before its layer.tar."""

    def __init__(self, leave_out):
        self.chains = list(leave_out)
        self.blobs = {diff_id.partition(":")[2] for diff_id in leave_out.values()}
        self.directories = set()
        self.left_out = 0

    def look_into(self, name):
        """Whether `learn` wants this member's content."""
        found = CLASSIC.fullmatch(name)
        return bool(found and found.group(2) == "json")

    def learn(self, name, content):
        if chain_of(content, self.chains):
            self.directories.add(name.partition("/")[0])

    def drops(self, member):
        classic, blob = CLASSIC.fullmatch(member.name), BLOB.fullmatch(member.name)
        known = (classic and classic.group(2) == "layer.tar" and classic.group(1) in self.directories) or (
            blob and blob.group(1) in self.blobs
        )
        if not known or not member.isfile():
            return False
        self.left_out += 1
        return True


class Counted:
    """A file that counts what is read from it."""

    def __init__(self, file):
        self.file = file
        self.read_bytes = 0

    def read(self, size):
        data = self.file.read(size)
        self.read_bytes += len(data)
        return data

    def close(self):
        self.file.close()


def copy(source, sink, choice):
    """The tar stream `source` without the members that `choice` drops, to `sink`."""
    with (
        tarfile.open(fileobj=source, mode="r|", bufsize=CHUNK) as old,
        tarfile.open(fileobj=sink, mode="w|", bufsize=CHUNK) as new,
    ):
        for member in old:
            if choice.drops(member):
                continue
            content = old.extractfile(member) if member.isfile() else None
            if content is not None and choice.look_into(member.name):
                text = content.read()
                choice.learn(member.name, text)
                new.addfile(member, io.BytesIO(text))
            else:
                new.addfile(member, content)


def say(**line):
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def main(order):
    pipe = subprocess.PIPE
    save = subprocess.Popen(["docker", "save", *order["references"]], stdout=pipe, stderr=pipe, bufsize=0)
    loads = {
        name: subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT)
        for name, words in order["targets"].items()
    }
    source, fan = Counted(save.stdout), Fan({name: load.stdin for name, load in loads.items()})
    choice = Filter(order["leave_out"])
    ended = threading.Event()

    def tick():
        while not ended.wait(1):
            try:
                say(read=source.read_bytes, sent=fan.sent)
            except OSError:  # nobody listens: the orchestrator is gone
                for process in (save, *loads.values()):
                    process.kill()
                return

    threading.Thread(target=tick, daemon=True).start()
    broken = ""
    try:
        copy(source, fan, choice)
        while source.read(CHUNK):  # the padding behind the last member
            pass
    except BrokenPipeError:  # every loader ended early: each says why
        source.close()
        save.kill()
    except (tarfile.TarError, OSError, ValueError) as error:
        broken = f"{type(error).__name__}: {error}"
    complaint = text_of(save.stderr)
    if (save.wait() != 0 or broken) and fan.pipes:
        for load in loads.values():  # before their input ends: half an image must not look like a whole one
            load.kill()
        ended.set()
        say(error=complaint or broken)
        return 1
    fan.close()
    done = {name: {"said": text_of(load.stdout)[-2000:], "status": load.wait()} for name, load in loads.items()}
    ended.set()
    say(done=done, read=source.read_bytes, sent=fan.sent, left_out=choice.left_out)
    return 0


def text_of(stream):
    """All that a stream still says."""
    return stream.read().decode("utf-8", "replace").strip()


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
