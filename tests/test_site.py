"""The documentation site builds without a warning, and fetches nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# What a browser would load by itself: no links that one clicks.
LOADED = re.compile(
    r"""<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)=["']?(?:https?:)?//[^"'> ]+"""
)


@pytest.mark.slow
def test_the_site_builds(tmp_path: Path) -> None:
    for name in ("mkdocs", "material", "mkdocstrings", "nbconvert", "ipywidgets"):
        pytest.importorskip(name, reason=f"{name} is not installed; make docs installs it")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(tmp_path),
    ]
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    pages = sorted(tmp_path.rglob("*.html"))
    assert {"index.html", "notebooks/demo.html", "reference/nn.html", "api.html"} <= {
        str(page.relative_to(tmp_path)) for page in pages
    }
    for page in pages:
        assert LOADED.findall(page.read_text(encoding="utf-8")) == [], page.name
    demo = (tmp_path / "notebooks" / "demo.html").read_text(encoding="utf-8")
    assert re.search(r'<img[^>]*src="demo_files/[^"]+\.png"', demo)
