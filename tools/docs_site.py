"""What MkDocs makes the site of, besides docs/: the pages of the root, the reference, and the
notebooks.

A hook of mkdocs.yml. Pages keep the links that they have in the repository; here they are turned
into the site's.
"""

from __future__ import annotations

import os
import posixpath
import re
import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

from api_page import SECTIONS  # noqa: E402

NOTEBOOK_SECONDS = 600

# Pages of the site that lie outside of docs/, by where they lie in the repository.
ROOT_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "examples/README.md": "examples.md",
}
MODULES = ("", "nn", "optim", "losses", "data", "autograd", "accel", "errors")
LINK = re.compile(r"(!?)\[([^\]\[]*)\]\(([^)\s]+)\)")
FENCED = re.compile(r"^(```.*?^```)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are not in docs/."""
    for source, target in ROOT_PAGES.items():
        files.append(
            File.generated(config, target, content=(ROOT / source).read_text(encoding="utf-8"))
        )
    for module in MODULES:
        files.append(
            File.generated(
                config, f"reference/{module or 'warpfit'}.md", content=_reference(module)
            )
        )
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        _add_notebook(files, config, path)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turn a page's links between files of the repository into links between pages."""
    source = _in_repository(page.file.src_uri)
    parts = FENCED.split(markdown)
    return "".join(
        part
        if part.startswith("```")
        else LINK.sub(lambda link: _linked(link, source, files), part)
        for part in parts
    )


def _in_repository(page: str) -> str:
    """Return where a page of the site comes from."""
    by_target = {target: source for source, target in ROOT_PAGES.items()}
    if page.startswith("notebooks/"):
        return page.removesuffix(".md") + ".ipynb"
    return by_target.get(page, f"docs/{page}")


def _linked(link: re.Match[str], source: str, files: Files) -> str:
    """Return a link as the site has it; one to a file that is no page of it is its text alone."""
    mark, text, target = link.groups()
    path, hash_sign, anchor = target.partition("#")
    if not path or ":" in path or source.startswith("docs/reference/"):
        return link[0]
    meant = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    wanted = _on_site(meant)
    if files.get_file_from_path(wanted) is None:
        return link[0] if mark or not (ROOT / meant).exists() else text
    here = posixpath.dirname(_on_site(source)) or "."
    return f"{mark}[{text}]({posixpath.relpath(wanted, here)}{hash_sign}{anchor})"


def _on_site(path: str) -> str:
    """Return where a file of the repository is on the site, if it is there."""
    if path.startswith("notebooks/"):
        return path.removesuffix(".ipynb") + ".md" if path.endswith(".ipynb") else path
    return ROOT_PAGES.get(path, path.removeprefix("docs/"))


def _reference(module: str) -> str:
    """Return a page of everything public in a module, in the order of docs/api.md, for
    mkdocstrings.
    """
    full = f"warpfit.{module}" if module else "warpfit"
    imported = import_module(full)
    words = (imported.__doc__ or "").strip().split("\n\n")[0]
    names = [name for section in SECTIONS if section.module == full for name in section.names]
    homes = (getattr(imported, name) for name in names)
    entries = "".join(f"\n::: {thing.__module__}.{thing.__qualname__}\n" for thing in homes)
    return f"# {full}\n\n{words}\n{entries}"


def _add_notebook(files: Files, config: Any, path: Path) -> None:
    """Run a notebook and add what it shows, as a page with its pictures."""
    import nbformat
    from nbclient import NotebookClient
    from nbconvert import MarkdownExporter
    from traitlets.config import Config

    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")])
    )
    notebook = nbformat.read(path, as_version=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        NotebookClient(
            notebook,
            timeout=NOTEBOOK_SECONDS,
            kernel_name="python3",
            resources={"metadata": {"path": path.parent}},
            extra_arguments=[
                "--IPKernelApp.log_level=40"
            ],  # that its sockets are open to this machine is known
        ).execute()
    settings = Config()
    settings.NbConvertBase.display_data_priority = [
        "image/png",
        "text/html",
        "text/markdown",
        "text/plain",
    ]
    settings.ExtractOutputPreprocessor.output_filename_template = (
        path.stem + "_files/{cell_index}_{index}{extension}"
    )
    text, resources = MarkdownExporter(config=settings).from_notebook_node(notebook)
    note = (
        f"*This page is `notebooks/{path.name}`, as it runs without a GPU. `make "
        "notebook` opens it.*\n\n"
    )
    files.append(
        File.generated(config, f"notebooks/{path.stem}.md", content=_with_note(text, note))
    )
    for name, content in resources["outputs"].items():
        files.append(File.generated(config, f"notebooks/{name}", content=content))


def _with_note(text: str, note: str) -> str:
    """Return the text with a note below its title."""
    title, _, rest = text.lstrip().partition("\n")
    return f"{title}\n\n{note}{rest}"
