"""Runs inside an image: has its vLLM say whether it knows architectures, and inspect their classes.

    python3 -c 'import sys; exec(sys.argv[1])' INSPECT_PROGRAM LIMIT_SECONDS ARCHITECTURE...

Standard library, Python 3.8 or newer. A child of it imports vLLM, once, and answers over a pipe: what vLLM and its
libraries print is kept apart. Every step has LIMIT_SECONDS; an import that hangs is an answer, too, and the container
ends. Answers are lines of JSON behind a marker, each with its `kind`, as image/events.py reads them.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

MARKER = "spark-pipeline-inspection "
CHILD = "child"
TEXT_CHARACTERS = 60000


def supervise(program, limit_seconds, architectures):
    """Run the child. Yields what it says; at last why it said no more, where it did not come to its end."""
    folder = Path(tempfile.mkdtemp(prefix="spark-pipeline-"))
    # vLLM's record of earlier inspections says yes for a class that no longer imports: it looks at one file only.
    environment = dict(os.environ, VLLM_CACHE_ROOT=str(folder / "cache"), VLLM_NO_USAGE_STATS="1", HF_HUB_OFFLINE="1")
    reading, writing = os.pipe()
    argv = [sys.executable, "-c", "import sys; exec(sys.argv[1])", program, CHILD, str(writing), *architectures]
    with (folder / "noise").open("w+b") as noise:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=noise,
            stderr=noise,
            pass_fds=[writing],
            env=environment,
            start_new_session=True,
        )
        os.close(writing)
        step, pending = "importing vLLM", b""
        end = time.monotonic() + limit_seconds
        while True:
            late = not select.select([reading], [], [], max(0.0, end - time.monotonic()))[0]
            data = b"" if late else os.read(reading, 65536)
            if not data:
                break
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                told = json.loads(line)
                end = time.monotonic() + limit_seconds
                if told["kind"] == "step":
                    step = told["name"]
                else:
                    yield told
        status = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = child.wait(timeout=0 if late else 10)
        if status is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        if late or status:  # else it said everything
            noise.seek(max(0, noise.seek(0, os.SEEK_END) - 3000))
            log = noise.read().decode("utf-8", "replace")
            told = {"step": step, "status": None if late else status, "limit_seconds": limit_seconds, "log": log}
            yield dict(told, kind="ended")


def failure(error):
    """The traceback; of an inspection, which vLLM does in a process of its own, what that process printed, and its
    status: one that was killed prints nothing of it."""
    said = str(error)
    if not said.startswith("Error raised in subprocess:"):
        said = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return {"text": said[-TEXT_CHARACTERS:], "status": getattr(error.__cause__, "returncode", None)}


def fallback(architecture):
    """Whether transformers has the class, and could run it under vLLM's backend: what vLLM asks itself."""
    import transformers  # pyright: ignore[reportMissingImports]
    from vllm.model_executor.models import registry  # pyright: ignore[reportMissingImports]

    model = getattr(transformers, architecture, None)
    if model is None:
        return {"transformers_class": False, "backend_compatible": None}
    questions = ["is_backend_compatible"]
    # The second question came with vLLM 0.30; transformers has the method for longer.
    if "_can_set_attn_implementation" in Path(registry.__file__).read_text(encoding="utf-8"):
        questions.append("_can_set_attn_implementation")
    answers = [bool(getattr(model, question)()) for question in questions if hasattr(model, question)]
    return {"transformers_class": True, "backend_compatible": any(answers) if answers else None}


def load_plugins():
    """Packages in the image may register architectures of their own; vLLM itself loads them before it serves."""
    from vllm.plugins import load_general_plugins  # pyright: ignore[reportMissingImports]

    load_general_plugins()


def answer(descriptor, architectures):
    """The child's part."""
    out = os.fdopen(descriptor, "w")

    def say(kind, **told):
        out.write(json.dumps(dict(told, kind=kind)) + "\n")
        out.flush()

    started = time.monotonic()
    try:
        from vllm import ModelRegistry  # pyright: ignore[reportMissingImports]

        supported = set(ModelRegistry.get_supported_archs())
        if not supported.issuperset(architectures):
            with contextlib.suppress(Exception):  # a broken plug-in does not stop vLLM either
                load_plugins()
            supported = set(ModelRegistry.get_supported_archs())
    except BaseException as error:  # noqa: BLE001 (a package may also end the process)
        say("import_failed", failure=failure(error), seconds=time.monotonic() - started)
        return
    say("registered", architectures=sorted(supported.intersection(architectures)))
    for name in architectures:
        say("step", name="inspecting " + name)
        try:
            if name in supported:
                ModelRegistry.models[name].inspect_model_cls()
                kind, told = "inspected", {}
            else:
                kind, told = "not_registered", fallback(name)
        except BaseException as error:  # noqa: BLE001
            kind = "inspection_failed" if name in supported else "transformers_failed"
            told = {"failure": failure(error)}
        say(kind, architecture=name, seconds=time.monotonic() - started, **told)
        started = time.monotonic()


def main():
    program, first, *others = sys.argv[1:]
    sys.path[:] = [place for place in sys.path if place]
    if first == CHILD:
        answer(int(others[0]), others[1:])
        # Threads of what was imported may wait for each other at the end of the process.
        os._exit(0)
    for told in supervise(program, float(first), others):
        print("\n" + MARKER + json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
