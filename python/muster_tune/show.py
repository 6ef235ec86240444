"""Trials of a study as a table, the best first."""

import json
import sys
from pathlib import Path

from muster_tune.study import DONE, FAILED, Study, StudyError, read

_SHOWN = 10


def show(words: list[str]) -> int:
    if len(words) != 1:
        print("usage: muster_tune show STUDY", file=sys.stderr)
        return 2
    try:
        study = read(Path(words[0]))
    except (OSError, StudyError) as error:
        print(f"muster_tune: {error}", file=sys.stderr)
        return 1
    print(table(study))
    return 0


def table(study: Study) -> str:
    trials, plan = study.trials, study.plan
    done = [trial for trial in trials if trial.state == DONE]
    failed = [trial for trial in trials if trial.state == FAILED]
    open_ = len(trials) - len(done) - len(failed)
    lines = [
        f"{study.directory}: {len(done)} trials done, {len(failed)} failed, {open_} open, of {plan['trials']}"
        + (f" ({study.no_more})" if study.no_more else "")
    ]
    sign = 1 if study.minimize else -1
    done.sort(key=lambda trial: (sign * trial.value, trial.number))
    rows = [["TRIAL", plan["objective"].upper(), "SETTING"]]
    rows += [[str(t.number), f"{t.value:g}", _setting(t.setting)] for t in done[:_SHOWN]]
    rows += [[str(t.number), "failed", f"{_setting(t.setting)}  {t.cause}"] for t in failed[:3]]
    widths = [max(len(row[i]) for row in rows) for i in range(2)]
    lines += [f"{row[0]:>{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]}" for row in rows]
    if done and plan["trainer"] is not None:
        best = done[0].setting
        sets = [f"--set trainer.{name}={_text(value)}" for name, value in best.items()]
        lines.append(f"The best: muster submit JOB.yaml {' '.join(sets)}")
    return "\n".join(lines)


def _setting(setting: dict) -> str:
    return " ".join(f"{name}={_text(value)}" for name, value in setting.items())


def _text(value) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value)
