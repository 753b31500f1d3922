"""The exception that matters in what a process printed before it ended."""

from __future__ import annotations

import subprocess
import sys

import pytest

from spark_pipeline.image.root_cause import root_cause


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
    assert (cause.error, cause.environment) == ("ModuleNotFoundError: No module named 'nothing'", "")
    assert cause.traceback.endswith(cause.error)


@pytest.mark.parametrize(
    "said",
    [
        "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory",
        "RuntimeError: No CUDA GPUs are available",
        "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU",
        "RuntimeError: 0 active drivers ([]). There should only be one.",
        "RuntimeError: Failed to infer device type, please set the environment variable `VLLM_LOGGING_LEVEL=DEBUG`",
        "AttributeError: 'UnspecifiedPlatform' object has no attribute 'x'",
        "vllm.third_party.pynvml.NVMLError_LibraryNotFound: NVML Shared Library Not Found",
        "OSError: [Errno 28] No space left on device",
    ],
)
def test_what_only_the_container_lacks_says_nothing_about_the_model(said: str) -> None:
    assert said in root_cause(f"Traceback (most recent call last):\n  File x\n{said}\n").environment


@pytest.mark.parametrize(
    "said",
    [
        "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory",
        "ImportError: cannot import name 'x' from 'vllm.third_party.pynvml'",
        "ImportError: /x/_C.abi3.so: undefined symbol: _ZN3c10",
        "AssertionError: Torch not compiled with CUDA enabled",
    ],
)
def test_what_the_image_lacks_is_not_excused(said: str) -> None:
    assert root_cause(f"Traceback (most recent call last):\n  File x\n{said}\n").environment == ""


def test_a_text_without_a_traceback_is_told_by_its_last_line() -> None:
    assert root_cause("one\nIllegal instruction\n\n").error == "Illegal instruction"
    assert root_cause("").error == "it said nothing"
