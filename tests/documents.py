"""Documents: links and anchors lead somewhere, and the glossary's retired words stay away."""

import re
import subprocess
import sys
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
    "|PlannedGang|PlannedPart|BaseOf"
    "|ahead_|RunAlone|CanBeginAhead|need_|StopWhatMust|FindSlot"
).split("|")
CORE = ("agent", "common", "network", "proto", "scheduler")  # tables and plots have cells
RETIRED_IN_TRAINER = (
    "kGather|kRelease|kRestore|kFold|kFinish|StartGather|FinishGather|FoldGradient|FinishReduce"
    "|GatherAll|Thin|rest_|detour|detours|detours_|Detour"
).split("|")
# (file, word) that mean something else there.
ALLOWED: set[tuple[str, str]] = {
    ("trainer/parallel/groups.h", "Thin"),
    ("common/spec/reference.cc", "Cell"),
    ("agent/host/cgroups.cc", "bases_"),
    ("agent/host/cgroups.h", "bases_"),
}


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


def retired_words(text, words=RETIRED):
    return re.findall(rf"\b(?:{'|'.join(words)})_?\b", text)


def test_retired_words_do_not_come_back():
    wrong = []
    folders = [(folder, RETIRED) for folder in CORE] + [("trainer", RETIRED_IN_TRAINER)]
    for folder, words in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in (".h", ".cc", ".cu", ".proto"):
                continue
            name = path.relative_to(ROOT).as_posix()
            for number, line in enumerate(path.read_text().splitlines(), 1):
                for word in retired_words(line, words):
                    if (name, word) not in ALLOWED:
                        wrong.append(f"{name}:{number}: {word} (docs/glossary.md has today's word)")
    assert not wrong, "\n".join(wrong)


def test_a_retired_word_is_found_word_and_case_exact():
    assert retired_words("a cell; LookNs(cells_); excellent, Base, baseline") == [
        "cell",
        "LookNs",
        "cells_",
    ]


# ---- what documents say of keys, flags and codes ----


def between(path, begin, end):
    text = (ROOT / path).read_text()
    assert begin in text, f"{path}: no {begin}"
    return text.partition(begin)[2].partition(end)[0]


def keys_read(path, begin, end="\n}\n"):
    return set(re.findall(r'\(?"([a-z_]+)"', between(path, begin, end)))


def table(path, first_column):
    """The names in backticks of the first column of the table with that header."""
    rows = between(path, f"\n| {first_column} |", "\n\n").splitlines()[2:]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row.split(" | ")[0])}


def test_every_key_of_the_daemons_files_is_documented():
    said = set(re.findall(r"[a-z_]+", (ROOT / "docs/configure.md").read_text()))
    daemon = "common/spec/daemon_files.cc"
    scheduling = set(re.findall(r'\*scheduling, "([a-z_]+)"', (ROOT / daemon).read_text()))
    scheduling |= keys_read(daemon, "scheduling->Choice(", ",")
    assert len(scheduling) > 8
    assert table("docs/configure.md", "key below `scheduling:`") >= scheduling
    cluster = "common/spec/cluster_file.cc"
    keys = scheduling | set(
        re.findall(
            r'(?:Text|Bool|Int|Milli|Size|Map|TextList|ForEachEntry|ReadSpan)\((?:fields, |\*\w+, )?\s*"([a-z_]+)"',
            (ROOT / cluster).read_text(),
        )
    )
    assert {"fence_command", "max_percent", "nvlink_island", "home"} <= keys
    not_yet = {"http", "auth"}
    assert not (keys - not_yet) - said
    queue = keys_read("common/spec/queue_file.cc", "void ReadQueue(", "Document& document_;")
    assert {"max_time_limit", "held", "weight"} <= queue
    assert not queue - said


def test_every_flag_of_the_agent_is_documented():
    flags = set(
        re.findall(
            r'add_(?:option|flag)\(\s*"(--[a-z-]+)"',
            (ROOT / "agent/daemon/muster_agent.cc").read_text(),
        )
    )
    assert len(flags) > 10
    said = (ROOT / "docs/install.md").read_text() + (ROOT / "docs/configure.md").read_text()
    assert not flags - set(re.findall(r"--[a-z-]+", said))
    assert table("docs/configure.md", "flag") <= flags


def test_every_verdict_and_exit_code_is_documented():
    verdicts = set(
        re.findall(
            r"^  (V_[A-Z_]+)",
            between("proto/muster/v1/job.proto", "enum VerdictCode {", "\n}"),
            re.M,
        )
    )
    assert len(verdicts) > 10
    assert table("docs/queues.md", "code") == verdicts
    codes = re.findall(r"= (\d+)", between("cli/exit_code.h", "enum ExitCode {", "\n}"))
    rows = between("docs/asking.md", "\n## Exit codes of `muster`\n", "\n\n#")
    assert sorted(codes) == sorted(re.findall(r"^\| (\d+) \|", rows, re.M))


def test_the_scheduling_rules_have_todays_defaults():
    units = {"Second": "s", "Minute": "m"}
    options = (ROOT / "scheduler/state/options.h").read_text()
    defaults = {
        name: f"{number}{units[unit]}"
        for name, number, unit in re.findall(r"int64_t (\w+)_ns =\s*(\d+) \* k(\w+);", options)
    }
    assert len(defaults) > 6
    rules = (ROOT / "docs/scheduling.md").read_text().rpartition("**Defaults**")[2]
    said = dict(re.findall(r"`([a-z_]+)` (\d+[sm])", rules))
    assert len(said) == 5 and said.items() <= defaults.items()
    rows = between("docs/configure.md", "| key below `scheduling:` |", "\n\n")
    for name, value in defaults.items():
        assert f"\n| `{name}` | {value} |" in rows, (name, value)


def test_the_scheduling_rules_name_the_passes_that_there_are_in_their_order():
    page = (ROOT / "docs/scheduling.md").read_text()
    listed = re.findall(
        r"\b[a-z_]+\b", between("docs/scheduling.md", "\nDecide(state, now):", "```")
    )
    files = {path.stem for path in (ROOT / "scheduler/decide/passes").glob("*.cc")}
    files = {name for name in files if not name.endswith("_test")}
    parts = {name for name in files if f"`{name}` (" in page}
    assert files - parts <= set(listed)
    called = re.findall(
        r"\b([A-Z]\w+)\(in, &draft\)", (ROOT / "scheduler/decide/decide.cc").read_text()
    )
    names = [
        re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower().removeprefix("give_") for name in called
    ]
    assert len(names) > 8
    assert names == [name for name in listed if name in names]
    for name in re.findall(r"`(scheduler/[\w/]+(?:\.cc|\.h)?)`", page):
        assert (ROOT / name).exists(), name


# ---- what comments cite ----

CODE = (".h", ".cc", ".cu", ".cuh", ".proto", ".py", ".sh", ".cmake", ".service", ".patch")
# Papers that lie outside of the repository, as comments once cited them.
OUTSIDE = re.compile(r"\bCONTRACTS\b|\bSCHEDULING(?:\.md| §)|\b(?:PRODUCT|DESIGN|TRAINER)\.md\b")
NUMBERS = r"\d+(?:(?:-|, | and | to )\d+)*"


def code():
    for path in sorted(ROOT.rglob("*")):
        relative = path.relative_to(ROOT)
        if relative.parts[0] in ("build", ".git") or path == Path(__file__).resolve():
            continue
        if path.suffix in CODE or path.name == "CMakeLists.txt":
            yield path


def unwrapped(text):
    """The text with comments of several lines on one."""
    return re.sub(r"\n[ +-]?\s*(?://|#)[ \t]*", " ", text)


def known_citations():
    contracts = (ROOT / "docs/contracts.md").read_text()
    return {
        "contract": set(re.findall(r"^### Contract (\d+):", contracts, re.MULTILINE)),
        "security rule": set(
            re.findall(r"^\| (\d+) \|", contracts.partition("\n## Security\n")[2], re.MULTILINE)
        ),
        "docs/scheduling.md §": set(
            re.findall(r"^## (\d+)\.", (ROOT / "docs/scheduling.md").read_text(), re.MULTILINE)
        ),
        "decision": {path.name[:3] for path in (ROOT / "docs/decisions").glob("*.md")},
    }


def headings_of(name):
    """What a citation may call a document's sections: "4. Backfill, spill" is both of them, too."""
    for heading in HEADING.findall(prose(ROOT / "docs" / name)):
        words = re.sub(r"^\d+\. ", "", heading).replace("`", "").lower()
        yield from (words, *words.split(", "))


def wrong_citations(text, known):
    text = unwrapped(text)
    yield from (f"{name}: is outside of the repository" for name in OUTSIDE.findall(text))
    for name in set(re.findall(r"\bdocs/[\w./-]+\.(?:md|svg)\b", text)):
        if not (ROOT / name).exists():
            yield f"{name}: no such file"
    for name, heading in (
        *re.findall(r'\bdocs/([a-z-]+\.md), "([^"]+)"', text),
        *re.findall(r"\bdocs/(scheduling\.md), ([a-z_]+)", text),
    ):
        if heading.lower() not in headings_of(name):
            yield f"docs/{name}, {heading}: no such heading"
    for kind, pattern in (
        ("contract", rf"\b[Cc]ontracts? ({NUMBERS})"),
        ("security rule", rf"\b[Ss]ecurity rules? ({NUMBERS})"),
        ("docs/scheduling.md §", r"\bdocs/scheduling\.md (§\d+(?:(?:, | and )§\d+)*)"),
        ("contract", rf"\bdocs/contracts\.md, ({NUMBERS})"),
        ("decision", r"\b[Dd]ecisions? (\d{3}(?:(?:, | and )\d{3})*)"),
    ):
        for cited in re.findall(pattern, text):
            for number in re.findall(r"\d+", cited):
                if number not in known[kind]:
                    yield f"{kind} {number}: no such rule or section"


def test_what_comments_cite_is_in_the_repository():
    known = known_citations()
    wrong = [
        f"{path.relative_to(ROOT)}: {citation}"
        for path in code()
        for citation in wrong_citations(path.read_text(errors="replace"), known)
    ]
    assert not wrong, "\n".join(wrong)


def test_a_citation_that_leads_nowhere_is_found():
    known = known_citations()
    assert known["contract"] == {str(n) for n in range(1, 25)}
    assert known["security rule"] == {str(n) for n in range(1, 15)}
    assert known["docs/scheduling.md §"] == {"1", "2", "3", "4", "5"}
    fine = "// (contracts 1-16 of docs/contracts.md, security rule 12, S1); docs/scheduling.md §2\n// and §4, decision 041"
    assert not list(wrong_citations(fine, known))
    assert sorted(
        wrong_citations(
            "// CONTRACTS 9; contract 25; contracts 3,\n// 31; docs/gone.md; docs/scheduling.md §1, §7; decision 999; "
            'docs/contracts.md, 40; docs/scheduling.md, reclaim; docs/scheduling.md, swap; docs/install.md, "Gone"',
            known,
        )
    ) == [
        "CONTRACTS: is outside of the repository",
        "contract 25: no such rule or section",
        "contract 31: no such rule or section",
        "contract 40: no such rule or section",
        "decision 999: no such rule or section",
        "docs/gone.md: no such file",
        "docs/install.md, Gone: no such heading",
        "docs/scheduling.md § 7: no such rule or section",
        "docs/scheduling.md, swap: no such heading",
    ]


def test_what_is_not_there_yet_is_not_there():
    commands = set(
        re.findall(r"^## muster (.+)$", (ROOT / "docs/commands.md").read_text(), re.MULTILINE)
    )
    page = "docs/decisions/047-what-is-not-there-yet.md"
    row = next(
        row for row in between(page, "| not there |", "\n\n").splitlines() if "exit 2" in row
    )
    missing = re.findall(r"`([a-z ]+)`", row.split(" | ")[0])
    assert missing and not commands & set(missing), commands & set(missing)


def test_every_planted_bug_fits_into_the_code():
    """Else who plants them all finds out after an hour."""
    patches = sorted((ROOT / "tests/mutants").rglob("*.patch"))
    assert len(patches) > 73
    for patch in patches:
        fits = subprocess.run(
            ["git", "apply", "--check", patch], cwd=ROOT, capture_output=True, text=True
        )
        assert fits.returncode == 0, f"{patch.relative_to(ROOT)}: {fits.stderr}"


def test_every_planted_bug_stands_beside_its_rule():
    rules = between("docs/contracts.md", "\n| rule | planted bugs |", "\n\n")
    planted = {path.stem for path in (ROOT / "tests/mutants").glob("*.patch")}
    assert planted == set(re.findall(r"`([a-z0-9-]+)`", rules))


def test_every_row_of_the_weekly_run_exists():
    weekly = between(".ci/weekly", "\nrows=(", ")").split()
    listed = subprocess.run(
        [sys.executable, ROOT / "bench/run.py", "list"], capture_output=True, text=True, check=True
    )
    rows = {line.split()[0] for line in listed.stdout.splitlines() if line.strip()}
    assert len(weekly) > 5 and not set(weekly) - rows
