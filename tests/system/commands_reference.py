"""docs/commands.md from what the programs say of themselves (--help). Written by:

ENV/bin/python tests/system/commands_reference.py build/release/bin > docs/commands.md
"""

import re
import subprocess
import sys
from pathlib import Path

HEAD = """# Commands

<!-- Made by tests/system/commands_reference.py from --help. Don't edit. -->

What `COMMAND --help` says, in one place. Exit codes, and what the commands are for: [asking.md](asking.md); the settings of `muster`:
[client.md](client.md); `muster-trainer`: [trainer.md](trainer.md); job files: [job-reference.md](job-reference.md).
"""
OTHERS = (
    ["musterd"],
    ["muster-agent"],
    ["muster-agent", "join"],
    ["muster-sim"],
    *(["muster-trainer", verb] for verb in ("train", "export", "convert", "estimate")),
)


def said(folder: Path, words: list[str]) -> str:
    done = subprocess.run(
        [folder / words[0], *words[1:], "--help"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())


def subcommands(text: str) -> list[str]:
    below = text.partition("\nSubcommands:\n")[2].partition("\n\n")[0]
    return re.findall(r"^  ([a-z][a-z-]*)", below, re.MULTILINE)


def sections(folder: Path, words: list[str]):
    text = said(folder, words)
    yield words, text
    for verb in subcommands(text) if words[0] == "muster" else ():
        yield from sections(folder, [*words, verb])


def reference(folder: Path) -> str:
    out = [HEAD]
    for words in (["muster"], *OTHERS):
        for command, text in sections(folder, words):
            everywhere = text.rfind("\n\nEverywhere:")  # once is enough
            out.append(
                f"## {' '.join(command)}\n\n```\n{text[:everywhere] if everywhere >= 0 else text}\n```\n"
            )
    return "\n".join(out)


if __name__ == "__main__":
    sys.stdout.write(reference(Path(sys.argv[1])))
