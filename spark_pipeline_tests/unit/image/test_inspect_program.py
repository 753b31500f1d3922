"""What an image's vLLM is asked when it is imported: the real program, a made-up vLLM."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_pipeline.image.answer import Inspection
from spark_pipeline_tests.unit.image.made_up import MODEL_REGISTRY, importable

GRAFTED = """Error raised in subprocess:
WARNING 11-30 18:00:00 [interface.py:221] Failed to import from vllm._C: ImportError('libcuda.so.1: cannot open')
Traceback (most recent call last):
  File "registry.py", line 1595, in <module>
    _run()
ImportError: cannot import name 'MambaStateCopyFunc' from 'vllm.model_executor.layers.mamba.mamba_utils'
"""


def inspect(
    directory: Path,
    *architectures: str,
    code: str = "",
    before: str = "",
    limit_seconds: float = 20,
    for_gpus: bool = False,
) -> dict[str, Inspection]:
    packages = importable(directory, f"{before}\n{MODEL_REGISTRY}\n{code}")
    return packages.inspect(*architectures, limit_seconds=limit_seconds, for_gpus=for_gpus)


def failing(text: str) -> str:
    return f'ModelRegistry.models["BrokenForCausalLM"] = Model(RuntimeError({text!r}))'


def test_a_registered_class_is_inspected(tmp_path: Path) -> None:
    found = inspect(tmp_path, "Qwen3ForCausalLM")["Qwen3ForCausalLM"]
    assert (found.registered, found.inspected, found.error, found.inconclusive) == (True, True, "", "")
    assert 0 < found.seconds < 20


def test_what_vllm_prints_does_not_get_into_the_answer(tmp_path: Path) -> None:
    noise = 'import sys, os\nprint("WARNING: no GPU")\nos.write(1, b"{}\\n")\nprint("x" * 200000, file=sys.stderr)'
    assert inspect(tmp_path, "Qwen3ForCausalLM", before=noise)["Qwen3ForCausalLM"].inspected


def test_a_longer_name_of_the_same_beginning_is_another_architecture(tmp_path: Path) -> None:
    found = inspect(tmp_path, "Qwen3")["Qwen3"]
    assert (found.registered, found.inspected) == (False, None)


def test_the_real_error_of_an_inspection_is_told(tmp_path: Path) -> None:
    found = inspect(tmp_path, "BrokenForCausalLM", code=failing(GRAFTED))["BrokenForCausalLM"]
    assert (found.registered, found.inspected, found.inconclusive) == (True, False, "")
    assert found.error.startswith("ImportError: cannot import name 'MambaStateCopyFunc' from 'vllm.model_executor")
    assert "_run()" in found.traceback


# vLLM's own way to look at a class: a process of its own, whose status is only in the cause of what is raised.
IN_A_PROCESS = """
import subprocess, sys
class Lazy(Model):
    def __init__(self, program):
        self.program = program
    def inspect_model_cls(self):
        done = subprocess.run([sys.executable, "-c", self.program], capture_output=True)
        try:
            done.check_returncode()
        except Exception as e:
            raise RuntimeError(f"Error raised in subprocess:\\n{done.stderr.decode()}") from e
"""
SAYS = "import sys, os, signal; print('WARNING: loading kernels', file=sys.stderr, flush=True); "


def looked_at(directory: Path, program: str, *, for_gpus: bool = False) -> Inspection:
    code = f'{IN_A_PROCESS}\nModelRegistry.models["BrokenForCausalLM"] = Lazy({program!r})'
    return inspect(directory, "BrokenForCausalLM", code=code, for_gpus=for_gpus)["BrokenForCausalLM"]


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (SAYS + "os.kill(os.getpid(), signal.SIGKILL)", "ended by the signal SIGKILL (no memory left"),
        (SAYS + "os.kill(os.getpid(), signal.SIGSEGV)", "ended by the signal SIGSEGV; the last it said: WARNING"),
        # Something was logged before, and a shell in between turns the signal into a status.
        (
            "import os, signal, logging\ntry:\n import nothing\nexcept ImportError:\n logging.exception('x')\n"
            "os.kill(os.getpid(), signal.SIGTERM)",
            "ended by the signal SIGTERM",
        ),
        (SAYS + "os._exit(137)", "ended by the signal SIGKILL"),
        (SAYS + "os._exit(1)", "ended without an exception, status 1; the last it said: WARNING: loading kernels"),
        ("import os; os._exit(3)", "ended without an exception, status 3; the last it said: Error raised in subproc"),
    ],
)
@pytest.mark.parametrize("for_gpus", [True, False])
def test_an_inspection_that_was_killed_says_nothing_about_the_class(
    tmp_path: Path, program: str, why: str, for_gpus: bool
) -> None:
    found = looked_at(tmp_path, program, for_gpus=for_gpus)
    assert (found.registered, found.inspected, found.final) == (True, None, False)
    assert why in found.inconclusive


@pytest.mark.parametrize("for_gpus", [True, False])
def test_an_inspection_that_ends_with_its_own_exception_is_final(tmp_path: Path, for_gpus: bool) -> None:
    found = looked_at(tmp_path, SAYS + "import nothing", for_gpus=for_gpus)
    assert (found.inspected, found.error, found.final) == (
        False,
        "ModuleNotFoundError: No module named 'nothing'",
        True,
    )


@pytest.mark.parametrize("error", ["MemoryError()", "OSError(28, 'No space left on device')"])
def test_an_inspection_without_room_is_asked_again(tmp_path: Path, error: str) -> None:
    found = looked_at(tmp_path, f"raise {error}")
    assert (found.registered, found.inspected, found.final) == (True, None, False)


def test_an_import_without_room_is_asked_again(tmp_path: Path) -> None:
    before = "raise OSError(24, 'Too many open files')"
    found = inspect(tmp_path, "Qwen3ForCausalLM", before=before)["Qwen3ForCausalLM"]
    assert (found.registered, found.final) == (None, False)
    assert "Too many open files" in found.inconclusive


def test_an_inspection_that_needs_a_gpu_says_nothing_about_the_class(tmp_path: Path) -> None:
    text = (
        "Error raised in subprocess:\nTraceback (most recent call last):\n  x\nRuntimeError: No CUDA GPUs are available"
    )
    found = inspect(tmp_path, "BrokenForCausalLM", code=failing(text))["BrokenForCausalLM"]
    assert (found.registered, found.inspected) == (True, None)
    assert found.inconclusive == "the container that asks has no GPU: RuntimeError: No CUDA GPUs are available"
    assert found.final


def test_one_that_fails_does_not_keep_the_next_from_being_asked(tmp_path: Path) -> None:
    found = inspect(tmp_path, "BrokenForCausalLM", "Qwen3ForCausalLM", code=failing(GRAFTED))
    assert [found[name].inspected for name in ("BrokenForCausalLM", "Qwen3ForCausalLM")] == [False, True]


def test_the_record_of_earlier_inspections_is_an_empty_one(tmp_path: Path) -> None:
    """It says yes for a class that no longer imports."""
    before = "import os\nassert not os.path.exists(os.environ['VLLM_CACHE_ROOT'])"
    assert inspect(tmp_path, "Qwen3ForCausalLM", before=before)["Qwen3ForCausalLM"].inspected


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("import no_such_package", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("raise ImportError('undefined symbol: _ZN3c10')", "ImportError: undefined symbol: _ZN3c10"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_a_vllm_that_cannot_be_imported_is_told_with_the_reason(tmp_path: Path, code: str, error: str) -> None:
    found = inspect(tmp_path, "Qwen3ForCausalLM", before=code)["Qwen3ForCausalLM"]
    assert (found.registered, found.inspected, found.error) == (None, None, error)
    assert found.inconclusive == ""


def test_an_import_that_hangs_ends_with_an_answer(tmp_path: Path) -> None:
    before = 'print("loading kernels", flush=True)\nimport time; time.sleep(60)'
    found = inspect(tmp_path, "Qwen3ForCausalLM", before=before, limit_seconds=1)["Qwen3ForCausalLM"]
    assert (found.registered, found.inspected) == (None, None)
    assert found.inconclusive == "importing vLLM did not end within 1 s"
    assert "loading kernels" in found.traceback


def test_an_inspection_that_hangs_leaves_what_was_answered_before(tmp_path: Path) -> None:
    code = """
class Hanging(Model):
    def inspect_model_cls(self):
        import time; time.sleep(60)
ModelRegistry.models["SlowForCausalLM"] = Hanging()
"""
    found = inspect(tmp_path, "Qwen3ForCausalLM", "SlowForCausalLM", code=code, limit_seconds=2)
    assert found["Qwen3ForCausalLM"].inspected
    slow = found["SlowForCausalLM"]
    assert (slow.registered, slow.inspected) == (True, None)
    assert slow.inconclusive == "inspecting SlowForCausalLM did not end within 2 s"


def test_a_vllm_that_is_killed_while_it_is_imported_says_nothing(tmp_path: Path) -> None:
    found = inspect(tmp_path, "Qwen3ForCausalLM", before="import os; os.kill(os.getpid(), 9)")["Qwen3ForCausalLM"]
    assert found.inconclusive.startswith("importing vLLM: it was ended by the signal SIGKILL (no memory left")
    assert not found.final


def test_a_vllm_that_ends_the_process_while_it_is_imported_says_nothing(tmp_path: Path) -> None:
    found = inspect(tmp_path, "Qwen3ForCausalLM", before="import os; os._exit(3)")["Qwen3ForCausalLM"]
    assert found.inconclusive == "importing vLLM: it ended the process with status 3"
    assert not found.final


@pytest.mark.parametrize(("compatible", "text"), [(True, "True"), (False, "False")])
def test_transformers_is_asked_for_what_vllm_does_not_have(tmp_path: Path, compatible: bool, text: str) -> None:
    packages = importable(tmp_path)
    other = f"class OtherForCausalLM:\n    is_backend_compatible = staticmethod(lambda: {text})\n"
    packages.add("transformers", {"__init__.py": other})
    found = packages.inspect("OtherForCausalLM", "FooForCausalLM")
    assert found["OtherForCausalLM"].backend_compatible is compatible
    assert [found[name].transformers_class for name in ("OtherForCausalLM", "FooForCausalLM")] == [True, False]
    assert not any(one.registered for one in found.values())


def test_a_transformers_that_cannot_be_asked_is_told(tmp_path: Path) -> None:
    found = inspect(tmp_path, "OtherForCausalLM")["OtherForCausalLM"]
    assert (found.registered, found.transformers_class, found.final) == (False, None, True)
    assert found.error == "ModuleNotFoundError: No module named 'transformers'"


def test_what_a_plug_in_registers_is_known(tmp_path: Path) -> None:
    packages = importable(tmp_path)
    plug_in = (
        "import vllm\ndef load_general_plugins():\n    vllm.ModelRegistry.models['OwnForCausalLM'] = vllm.Model()\n"
    )
    packages.add("vllm", {"plugins/__init__.py": plug_in})
    assert packages.inspect("OwnForCausalLM")["OwnForCausalLM"].inspected
