"""What people read must work: each Python block of the README and the docs runs, and so do the examples."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

# An opening fence, the code, and a fence as deep as the first.
_FENCED = re.compile(
    r"^(?P<fence>`{3,})(?P<language>\w*)[^\n]*\n(?P<code>.*?)^(?P=fence)\s*$", re.DOTALL | re.MULTILINE
)
_NO_RUN = re.compile(r"<!-- no-run: (?P<reason>.+?) -->\s*\Z")


@dataclass(frozen=True)
class Block:
    """A Python block of a page; ``no_run`` is the reason why it does not run here, or None."""

    page: str
    line: int
    code: str
    no_run: str | None


def python_blocks(text: str, page: str) -> list[Block]:
    blocks = []
    for match in _FENCED.finditer(text):
        if match["language"] == "python":
            before = text[: match.start()]
            mark = _NO_RUN.search(before)
            blocks.append(Block(page, before.count("\n") + 1, match["code"], mark and mark["reason"]))
    return blocks


def run(arguments: list[str], folder: Path, timeout: int) -> str:
    """Run Python in a folder of its own; returns what it printed, fails with it on an error."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment, check=False, capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


BLOCKS = [block for page in PAGES for block in python_blocks(page.read_text(encoding="utf-8"), page.name)]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"{block.page}:{block.line}")
def test_every_python_block_runs_on_its_own(block: Block, tmp_path: Path) -> None:
    if block.no_run is not None:
        pytest.skip(f"{block.page}:{block.line} is not run: {block.no_run}")
    script = tmp_path / "block.py"
    # As many empty lines first as the page has, so that a traceback names the line of the page.
    script.write_text("\n" * block.line + block.code, encoding="utf-8")
    run([str(script)], tmp_path, timeout=280)


def test_blocks_are_found_with_their_line_and_their_mark() -> None:
    text = (
        "# Title\n\n```python\na = 1\n```\n\n<!-- no-run: needs a GPU -->\n```python\nb = 2\n```\n"
        "\n```console\nmake\n```\n\n````python\nc = '''\n```python\n'''\n````\n"
    )
    assert python_blocks(text, "page.md") == [
        Block("page.md", 3, "a = 1\n", None),
        Block("page.md", 8, "b = 2\n", "needs a GPU"),
        Block("page.md", 16, "c = '''\n```python\n'''\n", None),
    ]


def test_the_readme_shows_code_early_and_stays_short() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 150
    assert any(block.page == "README.md" and block.line <= 30 for block in BLOCKS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_inside_the_repository_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_has_a_main_and_at_most_80_lines(example: Path) -> None:
    text = example.read_text(encoding="utf-8")
    assert re.search(r"^def main\(", text, re.MULTILINE)
    assert len(text.splitlines()) <= 80


def test_the_demo_has_200_sentences_of_its_own_in_many_lengths() -> None:
    sentences = (ROOT / "examples" / "sentences.txt").read_text(encoding="utf-8").splitlines()
    lengths = [len(sentence.split()) for sentence in sentences]
    assert len(set(sentences)) == 200
    assert min(lengths) <= 3
    assert 50 <= max(lengths) <= 60


def test_the_demo_in_its_short_form_ranks_as_before_tuning(tmp_path: Path) -> None:
    printed = run([str(ROOT / "examples" / "minilm_search.py"), "--quick"], tmp_path, timeout=280)
    assert "The rankings are the same as before tuning." in printed


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_demo_ranks_as_before_tuning(tmp_path: Path) -> None:
    printed = run([str(ROOT / "examples" / "minilm_search.py")], tmp_path, timeout=880)
    assert "The rankings are the same as before tuning." in printed
