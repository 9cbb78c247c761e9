"""The README that package indexes show: its links lead to the repository, which has the pages.

Hatch calls it for every build. WARPFIT_SOURCE is the repository's address, as `make wheel` sets it;
without it links stay as they are, and the package has no address.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)(\[[^\]]*\])\((?![a-z]+:|#)([^)\s]+)\)")


def with_absolute_links(text: str, source: str, version: str) -> str:
    """Return Markdown whose relative links lead to a version's files, as code hosts serve them."""

    def absolute(link: re.Match[str]) -> str:
        mark, words, path = link.groups()
        return f"{mark}{words}({source}/{'raw' if mark else 'blob'}/v{version}/{path})"

    return LINK.sub(absolute, text)


class Readme(MetadataHookInterface):
    """Adds the README, and the address."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set what pyproject.toml leaves to this hook."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["urls"] = {}
        if source := os.environ.get("WARPFIT_SOURCE", "").rstrip("/"):
            text = with_absolute_links(text, source, metadata["version"])
            metadata["urls"] = {"Source": source, "Changelog": f"{source}/blob/main/CHANGELOG.md"}
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
