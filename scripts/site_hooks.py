"""What mkdocs is told beyond `mkdocs.yml`: pages from outside of docs/, and the reference of what is tensoropt's own.

Pages stay as GitHub shows them; what a site needs otherwise (links, titles of blocks) is changed as it is built.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from tensoropt.api.mirror.namespaces import OWN
from tensoropt.api.mirror.tensorflow_loading import declared_names

__all__ = ["on_files", "on_page_content", "on_page_markdown", "reference"]

ROOT = Path(__file__).resolve().parent.parent
_OUTSIDE = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE")
# The names of a group stand in the order in which users meet them; what is in none comes under _MORE.
_GROUPS = {
    "The steps of a job": "init find_strategy build_execution_graph run world_rank world_size function on_rank_0",
    "Keras models": "keras.parallelize keras.plan keras.frontier keras.compare keras.verify keras.report keras.scope",
    "What was chosen, and others": "show_strategy explain report diff compare Mcmc strategy_rows verify "
    "reference_losses measuring",
    "The whole trade-off": "find_frontier profile_strategies Frontier Plan",
    "Clusters": "cluster.preset Topology cluster.Device cluster.Level cluster.topology_schema",
}
_MORE = "More"
# Wide enough for lines of code.
_STYLE = ".md-grid { max-width: 76rem; }\n"
_REFERENCE = """# Reference

What is tensoropt's own, from its docstrings. All other names are [TensorFlow's](using.md#the-model), with its
signatures: of them [TensorFlow's reference](https://www.tensorflow.org/api_docs/python/tf/compat/v1) is true.
"""


def reference() -> str:
    """The page of all names that are tensoropt's own and none of TensorFlow's, for mkdocstrings."""
    theirs = declared_names("", version_1_only=False) | declared_names("train", version_1_only=True)
    left = {name for name in OWN if "." not in name} - theirs
    text = [_REFERENCE]
    for group, names in {**{group: names.split() for group, names in _GROUPS.items()}, _MORE: None}.items():
        shown = sorted(left) if names is None else names
        left -= set(shown)
        text += [f"\n## {group}\n"] if shown else []
        for name in shown:
            home = ".".join(OWN.get(name, ("tensoropt", name)))
            text.append(f"\n::: {home}\n    options: {{heading: tensoropt.{name}, show_root_heading: true}}\n")
    text.append("\n## Errors\n\n::: tensoropt.errors\n    options: {filters: [Error], show_root_toc_entry: false}\n")
    return "".join(text)


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that lie outside of docs/, and the reference."""
    for name in _OUTSIDE:
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=re.sub(r"\]\(docs/", "](", text)))
    files.append(File.generated(config, "reference.md", content=reference()))
    files.append(File.generated(config, "site.css", content=_STYLE))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Has links and blocks of code that GitHub understands be those that mkdocs does."""
    markdown = re.sub(r"\]\(\.\./(\w+\.md)", r"](\1", markdown)
    # A block that shows a file has the file's path behind the language.
    return re.sub(r"^( *```\w+) ([\w./-]+)$", r'\1 title="\2"', markdown, flags=re.M)


def on_page_content(html: str, **_: Any) -> str:
    """Has docstrings' references (``:func:`name```) be code."""
    return re.sub(r":(?:class|data|func|meth|mod):(<code>)~?", r"\1", html)
