"""The exception that matters in what a process printed before it ended."""

from __future__ import annotations

import subprocess
import sys

import pytest

from spark_pipeline.image.root_cause import Says, root_cause


def printed(program: str) -> str:
    """What a real Python prints when this ends it."""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False).stderr


@pytest.mark.parametrize(
    ("program", "error"),
    [
        ("from os import nothing", "ImportError: cannot import name 'nothing' from 'os'"),
        (
            "try:\n import nothing\nexcept ImportError as e:\n raise RuntimeError('No x because:\\nno') from e",
            "ModuleNotFoundError: No module named 'nothing'",
        ),
        ("try:\n {}['a']\nexcept KeyError:\n raise ValueError('the real one')", "ValueError: the real one"),
        (
            "import logging\ntry:\n import nothing\nexcept ImportError:\n logging.exception('never mind')\n"
            "raise TypeError('the last one')",
            "TypeError: the last one",
        ),
        (
            "raise ValueError('1 validation error for X:\\n  not good')",
            "ValueError: 1 validation error for X: not good",
        ),
        ("class A:\n def __del__(self): raise KeyError('at the end')\na = A()\nraise ValueError('x')", "ValueError: x"),
        ("exec('a = (')", "SyntaxError: '(' was never closed"),
    ],
)
def test_the_innermost_cause_is_the_real_error(program: str, error: str) -> None:
    assert root_cause("WARNING: something\n" + printed(program)).error.startswith(error)


def test_warnings_around_the_traceback_do_not_matter() -> None:
    text = (
        f"WARNING libcuda.so.1: cannot open shared object file\n{printed('import nothing')}\nresource_tracker: 1 leaked"
    )
    cause = root_cause(text)
    assert (cause.error, cause.inconclusive) == ("ModuleNotFoundError: No module named 'nothing'", "")
    assert cause.traceback.endswith(cause.error)


def ended_with(said: str) -> str:
    return f"Traceback (most recent call last):\n  File x\n{said}\n"


@pytest.mark.parametrize("for_gpus", [True, False])
@pytest.mark.parametrize(
    "said",
    [
        "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory",
        "ImportError: libnvidia-ml.so.1: cannot open shared object file: No such file or directory",
        "OSError: libcuda.so.1: cannot open shared object file: No such file or directory",
        "RuntimeError: No CUDA GPUs are available",
        "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU",
        "RuntimeError: 0 active drivers ([]). There should only be one.",
        "RuntimeError: Failed to infer device type, please set the environment variable `VLLM_LOGGING_LEVEL=DEBUG`",
        "AttributeError: 'UnspecifiedPlatform' object has no attribute 'x'",
        "vllm.third_party.pynvml.NVMLError_LibraryNotFound: NVML Shared Library Not Found",
    ],
)
def test_what_needs_a_gpu_says_nothing_about_the_model_and_would_not_another_time(said: str, for_gpus: bool) -> None:
    cause = root_cause(ended_with(said), 1, for_gpus=for_gpus)
    assert (cause.says, cause.says.final) == (Says.NO_GPU, True)
    assert said in cause.inconclusive


@pytest.mark.parametrize("for_gpus", [True, False])
@pytest.mark.parametrize(
    "said",
    [
        "OSError: [Errno 28] No space left on device",
        "OSError: [Errno 122] Disk quota exceeded: '/tmp/x'",
        "OSError: [Errno 24] Too many open files: '/opt/x.py'",
        "OSError: [Errno 12] Cannot allocate memory",
        "OSError: [Errno 5] Input/output error",
        "BlockingIOError: [Errno 11] Resource temporarily unavailable",
        "FileNotFoundError: [Errno 2] No usable temporary directory found in ['/tmp', '/var/tmp', '/usr/tmp', '/']",
        "MemoryError",
        "MemoryError: Unable to allocate 2. GiB for an array",
        "RuntimeError: can't start new thread",
        "RuntimeError: std::bad_alloc",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: you tried 9 B",
        "ImportError: /x/libtorch_cpu.so: failed to map segment from shared object",
        "ImportError: /x/libtorch_cpu.so: cannot open shared object file: Too many open files",
        "socket.gaierror: [Errno -3] Temporary failure in name resolution",
    ],
)
def test_what_was_short_just_then_says_nothing_and_may_another_time(said: str, for_gpus: bool) -> None:
    cause = root_cause(ended_with(said), 1, for_gpus=for_gpus)
    assert (cause.says, cause.says.final) == (Says.NOT_NOW, False)
    assert said in cause.inconclusive


@pytest.mark.parametrize("for_gpus", [True, False])
@pytest.mark.parametrize(
    "said",
    [
        "ImportError: cannot import name 'MambaStateCopyFunc' from 'vllm.model_executor.layers.mamba.mamba_utils'",
        "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory",
        "ImportError: cannot import name 'x' from 'vllm.third_party.pynvml'",
        "ImportError: /x/_C.abi3.so: undefined symbol: _ZN3c10",
        "ImportError: /x/libgomp.so.1: cannot allocate memory in static TLS block",
        "ModuleNotFoundError: No module named 'torchvision'",
        "SyntaxError: '(' was never closed",
        "IndentationError: unexpected indent",
        "NameError: name 'x' is not defined",
        "AttributeError: module 'vllm.model_executor.models.qwen3' has no attribute 'NoSuchClass'",
        "AttributeError: partially initialized module 'x' has no attribute 'y' (most likely due to a circular import)",
    ],
)
def test_what_the_image_lacks_is_not_excused(said: str, for_gpus: bool) -> None:
    cause = root_cause(ended_with(said), 1, for_gpus=for_gpus)
    assert (cause.says, cause.inconclusive, cause.says.final) == (Says.BROKEN, "", True)


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ("AssertionError: Torch not compiled with CUDA enabled", Says.NO_GPU),
        ("RuntimeError: operator torchvision::nms does not exist", Says.NO_GPU),
        ("AttributeError: '_OpNamespace' '_C' object has no attribute 'rms_norm'", Says.NO_GPU),
        ("KeyError: 'sm_121'", Says.NO_GPU),
        ("some.package.Error: no suitable device", Says.NO_GPU),
        ("NameErrorOfItsOwn: x", Says.NO_GPU),
        ("PermissionError: [Errno 13] Permission denied: '/x'", Says.NOT_NOW),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", Says.NOT_NOW),
    ],
)
def test_of_an_image_for_gpus_only_what_is_certain_counts(said: str, says: Says) -> None:
    cause = root_cause(ended_with(said), 1, for_gpus=True)
    assert cause.says is says
    assert said in cause.inconclusive
    assert root_cause(ended_with(said), 1).says is Says.BROKEN


def test_the_innermost_cause_decides_what_counts() -> None:
    first = "try:\n import nothing\nexcept ImportError as e:\n raise RuntimeError('x') from e"
    other = "try:\n {}['sm_121']\nexcept KeyError as e:\n raise ImportError('x') from e"
    said = [root_cause(printed(program), 1, for_gpus=True).says for program in (first, other)]
    assert said == [Says.BROKEN, Says.NO_GPU]


@pytest.mark.parametrize("text", ["one\nIllegal instruction\n\n", "WARNING: x", "Killed", ""])
@pytest.mark.parametrize("status", [None, 1])
def test_a_text_without_an_exception_is_no_cause(text: str, status: int | None) -> None:
    cause = root_cause(text, status)
    assert cause.says is Says.NOT_NOW
    assert cause.error == (text.splitlines() or ["it said nothing"])[-1 if "one" not in text else 1]
    assert cause.error in cause.inconclusive


def test_a_syntax_error_of_the_first_file_has_no_traceback() -> None:
    cause = root_cause(printed("a = ("), 1)
    assert (cause.says, cause.error) == (Says.BROKEN, "SyntaxError: '(' was never closed")


@pytest.mark.parametrize("status", [-9, -11, -15, -99, 137, 143])
def test_what_a_killed_process_printed_before_is_no_cause(status: int) -> None:
    cause = root_cause(printed("import nothing"), status)
    assert cause.says is Says.NOT_NOW
    assert "ended by the signal" in cause.inconclusive
    assert root_cause(printed("import nothing"), 1).says is Says.BROKEN
