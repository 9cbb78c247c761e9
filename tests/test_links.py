"""Links between pages lead somewhere: to files that are there, and to headings that they have."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md"), *(ROOT / "notebooks").glob("*.ipynb")]
)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)


def text_of(page: Path) -> str:
    """Return a page's Markdown without its blocks of code; of a notebook, that of its Markdown
    cells.
    """
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n\n".join(
            "".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"
        )
    return FENCED.sub("", text)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as code hosts make them: a second of a name has -1
    after it.
    """
    found: Counter[str] = Counter()
    names = set()
    for heading in HEADING.findall(text_of(page)):
        words = LINK.sub(lambda link: link[0][1 : link[0].index("]")], heading)
        name = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        names.add(f"{name}-{found[name]}" if found[name] else name)
        found[name] += 1
    return names


def broken(page: Path) -> list[str]:
    """Return the links of a page that lead nowhere; those to other hosts are not followed."""
    wrong = []
    for target in LINK.findall(CODE.sub("", text_of(page))):
        path, _, anchor = target.partition("#")
        if ":" in path:
            continue
        meant = page if not path else (page.parent / path).resolve()
        is_there = meant.exists() and meant.is_relative_to(ROOT)
        if not is_there or (anchor and anchor not in anchors(meant)):
            wrong.append(target)
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_links_that_lead_nowhere_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    page = tmp_path / "page.md"
    (tmp_path / "other.md").write_text("# A title, `code` and all\n\n## Twice\n\n## Twice\n")
    page.write_text(
        "[a](other.md) [b](other.md#a-title-code-and-all) [c](other.md#twice-1) [d](#here) "
        "[e](https://example.org)\n"
        "# Here\n`[not](a.link)`\n```\n[nor](this.one)\n```\n[f](none.md) [g](other.md#twice-2) "
        "[h](#there) [i](../x)\n"
    )
    assert broken(page) == ["none.md", "other.md#twice-2", "#there", "../x"]


def test_every_page_is_on_the_site() -> None:
    listed = set(
        re.findall(
            r": ([\w./-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE
        )
    )
    docs = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").glob("**/*.md")}
    notebooks = {f"notebooks/{page.stem}.md" for page in (ROOT / "notebooks").glob("*.ipynb")}
    made = {name for name in listed if name.startswith("reference/")}
    outside = {"index.md", "contributing.md", "changelog.md", "examples.md"}
    assert listed - made == docs | notebooks | outside
