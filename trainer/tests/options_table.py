"""The table of all fields of `trainer:` in docs/trainer.md, made from what `muster-trainer --schema` says.

options_table.py        writes it there; MUSTER_TRAINER_BIN names the binary. test_schema.py holds the two against each other
"""

import json
import subprocess
import sys

import harness

PAGE = harness.PREPARE.parent.parent / "docs" / "trainer.md"
BEGIN, END = (
    "<!-- Made by trainer/tests/options_table.py from muster-trainer --schema. -->\n",
    "<!-- the end of the table -->\n",
)


def type_text(field: dict) -> str:
    if "enum" in field:
        return ", ".join(field["enum"])
    if isinstance(field["type"], list):  # a word in place of a map, or of true and false
        kind = {"object": "map", "boolean": "true or false"}[
            next(one for one in field["type"] if one != "string")
        ]
        return f"{kind}, or {field['pattern'].strip('^$')}"
    low, high = field.get("minimum"), field.get("maximum")
    name = {
        "integer": "whole number",
        "number": "number",
        "string": "text",
        "boolean": "true or false",
        "array": "list",
        "object": "map",
    }[field["type"]]
    if "exclusiveMinimum" in field:
        return f"{name} above {field['exclusiveMinimum']:g}"
    if name in ("whole number", "number") and low is not None and high is not None:
        return f"{name}, {low:.10g} to {high:.10g}" if high < 1e5 else f"{name} from {low:.10g}"
    return name


def default_text(field: dict, required: bool) -> str:
    if required:
        return "**required**"
    return json.dumps(field["default"]).strip('"') if "default" in field else ""


def table(schema: dict) -> str:
    rows = ["| field | type | default | meaning |", "|---|---|---|---|"]

    def add(prefix: str, of: dict) -> None:
        for name, field in of["properties"].items():
            description = field["description"].replace("|", "\\|")
            rows.append(
                f"| `{prefix}{name}` | {type_text(field)} | {default_text(field, name in of.get('required', []))} | {description} |"
            )
            if name != "model" and "properties" in field:
                add(f"{prefix}{name}.", field)
            if "properties" in field.get("items", {}):
                add(f"{prefix}{name}[].", field["items"])

    add("", schema)
    return "\n".join(rows) + "\n"


def page_with(text: str, schema: dict) -> str:
    before, rest = text.split(BEGIN)
    return before + BEGIN + "\n" + table(schema) + "\n" + END + rest.split(END)[1]


def main() -> int:
    schema = json.loads(
        subprocess.run(
            [harness.trainer_binary(), "--schema"], check=True, capture_output=True, text=True
        ).stdout
    )
    PAGE.write_text(page_with(PAGE.read_text(), schema))
    return 0


if __name__ == "__main__":
    sys.exit(main())
