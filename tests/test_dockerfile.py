"""The Dockerfile copies what there is, past .dockerignore, and its command belongs to no
administrator.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LINES = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
INSTRUCTIONS = [line.partition(" ")[::2] for line in LINES if line and not line.startswith("#")]


def test_what_is_copied_is_there_and_not_ignored() -> None:
    kept = {
        line[1:]
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied = {name for word, rest in INSTRUCTIONS if word == "COPY" for name in rest.split()[:-1]}
    assert copied == kept
    assert all((ROOT / name).exists() for name in copied)


def test_what_the_package_is_built_from_is_copied() -> None:
    copied = " ".join(rest for word, rest in INSTRUCTIONS if word == "COPY").split()
    assert {"pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "src"} <= set(copied)
    assert 'license-files = ["LICENSE"]' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_it_runs_the_command_as_a_user() -> None:
    words = [word for word, _ in INSTRUCTIONS]
    assert words[0] == "FROM"
    assert dict(INSTRUCTIONS)["ENTRYPOINT"] == '["warpfit"]'
    assert words.index("USER") < words.index("ENTRYPOINT")
    assert int(dict(INSTRUCTIONS)["USER"]) > 0


def test_the_extras_that_it_installs_are_there() -> None:
    (extras,) = re.findall(r"'\.\[([\w,]+)\]'", "\n".join(LINES))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (
        {"cli", "plot", "cuda"} == set(extras.split(",")) <= set(project["optional-dependencies"])
    )
