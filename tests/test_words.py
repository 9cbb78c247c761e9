"""Pages are quickly read: short lines, short sentences, and the field's terms."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "docs").glob("**/*.md"))
LINE, SENTENCE, MEDIAN = 100, 40, 20  # characters; words; words
SCREEN, RESULTS = 70, 250  # lines of the glossary, and of the page of results

FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
GENERATED = re.compile(r"<!-- results: [\w-]+ -->\n.*?<!-- end -->", re.DOTALL)
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]+\)")
ITEM = re.compile(r"(?:[-*]|\d\d?\.) +")
END = re.compile(r"(?<=[.!?])[*_)\"]*\s+(?=[*_(\"\[]*[A-Z0-9µ])")

# What one does not write, and what the field says: on pages, and in the source.
TERMS = {
    r"in roles": "warp-specialized",
    r"ways? (?:of [\w ]+ )?through memory": "round trip",
    r"shar(?:e|es|ed|ing)(?: [\w']+){,4} out": "partition",
    r"weights of rows": "sample weights",
    r"weights of classes": "class weights",
    r"remember(?:s|ed) of": "optimizer state",
    r"finds? out by itself": "decides",
    r"looking ahead": "look-ahead",
    r"for want of": "for lack of",
    r"the ways? (?:forward|back)": "forward or backward pass",
    r"rows to (?:train|validate) on": "training rows, validation rows",
    r"slopes (?:of|along|come)": "derivatives or gradients",
}
SOURCE = [path for path in (ROOT / "src").rglob("*") if path.suffix in (".py", ".cu", ".cuh")]


@cache
def texts() -> dict[Path, str]:
    pages = [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    return {path: path.read_text(encoding="utf-8") for path in [*pages, *SOURCE]}


def prose(text: str) -> str:
    """Return a page without its code and what is generated."""
    return FENCED.sub("", GENERATED.sub("", text))


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of paragraphs and list items; a span of code counts as a word."""
    paragraph: list[str] = []
    for line in [*prose(text).splitlines(), ""]:
        words = line.strip()
        is_item = ITEM.match(words) is not None
        if not words or is_item or words.startswith(("#", "|", "<", "!")):
            yield from END.split(re.sub(r"`[^`]*`", "X", LINK.sub(r"\1", " ".join(paragraph))))
            paragraph = [ITEM.sub("", words, count=1)] if is_item else []
        else:
            paragraph.append(words)


def is_long(line: str) -> bool:
    return len(line) > LINE and not line.lstrip().startswith(("|", "![")) and "://" not in line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT / "docs")))
def test_pages_are_quickly_read(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    lengths = {sentence: len(sentence.split()) for sentence in sentences(text) if sentence}
    assert [sentence for sentence, words in lengths.items() if words > SENTENCE] == []
    assert median(lengths.values()) <= MEDIAN
    if page.name != "api.md":  # a name a line, generated
        assert [line for line in prose(text).splitlines() if is_long(line)] == []


def test_what_is_hard_to_read_is_found() -> None:
    text = (
        "# A title\n\n* One. Two\n  words: `a b`. 3 is more.\n\n| "
        f"{'table ' * 50}|\n```\n{'code ' * 50}\n```\nEnd"
    )
    assert list(filter(None, sentences(text))) == ["One.", "Two words: X.", "3 is more.", "End"]
    assert not any(is_long(line) for line in prose(text).splitlines())
    assert is_long("word " * 21)


def test_the_glossary_is_a_screen_and_the_results_are_a_page() -> None:
    lines = {page.stem: len(page.read_text(encoding="utf-8").splitlines()) for page in PAGES}
    assert lines["glossary"] <= SCREEN
    assert lines["performance"] <= RESULTS


@pytest.mark.parametrize("term", TERMS)
def test_terms_are_the_fields(term: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}: {match[0]!r}, write {TERMS[term]!r}"
        for path, text in texts().items()
        for match in re.finditer(rf"\b(?:{term})\b", text, re.IGNORECASE)
    ]
    assert found == []
