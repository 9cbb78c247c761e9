"""The Dockerfile copies what there is, past .dockerignore, and its command belongs to no
administrator.
"""

from __future__ import annotations

import re
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
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    named = re.findall(r'^(?:readme = |license-files = \[)"([^"]+)"', project, re.MULTILINE)
    copied = " ".join(rest for word, rest in INSTRUCTIONS if word == "COPY")
    assert len(named) == 2
    assert all(name in copied for name in named)


def test_it_runs_the_command_as_a_user() -> None:
    words = [word for word, _ in INSTRUCTIONS]
    assert words[0] == "FROM"
    assert dict(INSTRUCTIONS)["ENTRYPOINT"] == '["warpfit"]'
    assert words.index("USER") < words.index("ENTRYPOINT")
    assert int(dict(INSTRUCTIONS)["USER"]) > 0
    assert "[cli,plot,cuda]" in " ".join(rest for word, rest in INSTRUCTIONS if word == "RUN")
