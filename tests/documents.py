"""Documents: links and anchors lead somewhere, and the glossary's retired words stay away."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#{1,6} +(.*?) *$", re.MULTILINE)

# docs/glossary.md, "Retired words": word for word, as far as the code has been renamed.
RETIRED = (
    "cell|cells|Cell|Cells|bound_cell|cell_of|CellOf|CellName|CellFor|cpu_cell|gpu_cell"
    "|bases|Bases|base_of|over_bases"
    "|LookAt|LookNs|NextLookNs|look_ns|next_look_ns"
    "|PlannedGang|PlannedPart"
).split("|")
# (file, word) that mean something else there.
ALLOWED: set[tuple[str, str]] = set()


def documents():
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def prose(path):
    return FENCED.sub("", path.read_text())


def anchors(path):
    """The anchors of a document's headings, as hosting sites make them."""
    found = set()
    for heading in HEADING.findall(prose(path)):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        number = 0
        while (name := f"{anchor}-{number}" if number else anchor) in found:
            number += 1
        found.add(name)
    return found


def broken_links(path):
    for link in LINK.findall(prose(path)):
        if re.match(r"[a-z][a-z0-9+.-]*:", link):  # another site's
            continue
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        if not target.exists():
            yield f"{path.relative_to(ROOT)}: {link}: no such file"
        elif anchor and anchor not in anchors(target):
            yield f"{path.relative_to(ROOT)}: {link}: no such heading"


def test_links_and_anchors_lead_somewhere():
    wrong = [broken for path in documents() for broken in broken_links(path)]
    assert not wrong, "\n".join(wrong)


def test_a_broken_link_is_found(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "there.md").write_text("# One: `two` and [three](x)\n## Twice\n## Twice\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](there.md) [b](there.md#one-two-and-three) [c](there.md#twice-1) [d](https://x.example/)\n"
        "```\n[e](in-code.md)\n```\n[f](gone.md) [g](there.md#four) [h](#nowhere)\n"
    )
    assert [b.split(": ", 1)[1] for b in broken_links(page)] == [
        "gone.md: no such file",
        "there.md#four: no such heading",
        "#nowhere: no such heading",
    ]


def retired_words(text):
    return re.findall(rf"\b(?:{'|'.join(RETIRED)})_?\b", text)


def test_retired_words_do_not_come_back():
    wrong = []
    for path in sorted((ROOT / "scheduler").rglob("*")):
        if path.suffix not in (".h", ".cc"):
            continue
        name = path.relative_to(ROOT).as_posix()
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for word in retired_words(line):
                if (name, word) not in ALLOWED:
                    wrong.append(f"{name}:{number}: {word} (docs/glossary.md has today's word)")
    assert not wrong, "\n".join(wrong)


def test_a_retired_word_is_found_word_and_case_exact():
    assert retired_words("a cell; LookNs(cells_); excellent, Base, baseline") == [
        "cell",
        "LookNs",
        "cells_",
    ]
