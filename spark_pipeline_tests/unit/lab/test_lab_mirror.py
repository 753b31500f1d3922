"""The mirror comes from this machine's apt, in whichever format it is written there."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_pipeline.errors import LabError
from spark_pipeline.lab.mirror import OVERRIDE, AptSource, deb822_sources, find_mirror, one_line_sources

BOOKWORM = {"ID": "debian", "VERSION_CODENAME": "bookworm", "PRETTY_NAME": "Debian"}

CLASSIC = """\
# deb http://old.example/debian bookworm main
deb-src http://source.example/debian bookworm main
deb [arch=amd64 signed-by=/usr/share/keyrings/x.gpg] http://vendor.example/apt bookworm main
deb http://security.example/debian-security bookworm-security main
deb http://mirror.example/debian bookworm main contrib # the one
"""

DEB822 = """\
Types: deb
# a comment between fields
URIs: http://off.example/debian
Suites: bookworm
Components: main
Enabled: no

Types: deb deb-src
URIs: http://mirror.example/debian
Suites: bookworm
 bookworm-updates
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
"""


@pytest.fixture
def etc_apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(OVERRIDE, raising=False)
    (tmp_path / "sources.list.d").mkdir()
    return tmp_path


def test_classic_format_is_read() -> None:
    assert [source.uri for source in one_line_sources(CLASSIC)] == [
        "http://vendor.example/apt",
        "http://security.example/debian-security",
        "http://mirror.example/debian",
    ]


def test_newer_format_is_read_with_folded_fields_and_without_disabled_entries() -> None:
    wanted = AptSource("http://mirror.example/debian", ("bookworm", "bookworm-updates"), ("main",))
    assert list(deb822_sources(DEB822)) == [wanted]


def test_debian_is_preferred_to_vendors_that_use_its_suite_names(etc_apt: Path) -> None:
    (etc_apt / "sources.list").write_text(CLASSIC)
    assert find_mirror(etc_apt, BOOKWORM) == "http://mirror.example/debian"


def test_newer_format_is_found_in_its_folder(etc_apt: Path) -> None:
    (etc_apt / "sources.list.d" / "debian.sources").write_text(DEB822)
    assert find_mirror(etc_apt, BOOKWORM) == "http://mirror.example/debian"


def test_a_list_of_mirrors_gives_its_first(etc_apt: Path) -> None:
    (etc_apt / "list").write_text("# cloud\nhttps://first.example/debian\nhttps://second.example/debian\n")
    (etc_apt / "sources.list").write_text(f"deb mirror+file:{etc_apt}/list bookworm main\n")
    assert find_mirror(etc_apt, BOOKWORM) == "https://first.example/debian"


def test_another_distribution_is_told_how_to_name_a_mirror(etc_apt: Path) -> None:
    (etc_apt / "sources.list").write_text("deb http://archive.example/ubuntu noble main universe\n")
    with pytest.raises(LabError) as caught:
        find_mirror(etc_apt, {"ID": "ubuntu", "VERSION_CODENAME": "noble", "PRETTY_NAME": "Ubuntu 24.04"})
    assert OVERRIDE in caught.value.remedy
    assert "Ubuntu 24.04" in caught.value.observed


def test_a_named_mirror_is_taken_as_it_is(etc_apt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OVERRIDE, "http://named.example/debian")
    assert find_mirror(etc_apt, {"ID": "ubuntu"}) == "http://named.example/debian"
