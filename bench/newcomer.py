"""What people who were new to it stumbled over, each point with the tests that fail where it is still so.

    bench/run.sh newcomer [--quick]

Builds nothing: the tests' programs lie in build/release/tests (deploy/build.sh). --quick leaves out nothing: all of it takes less than a minute.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from figures import ROOT, figure

TESTS = ROOT / "build" / "release" / "tests"

# What they met -> tests: PROGRAM:SUITE.NAME of a unit test, or the name of one in tests/system/test_newcomer.py or test_simulator.py.
POINTS = {
    "muster sandbox after the demo: no such file, and a remedy that does not help": (
        "cli_test:CliTest.ASandboxThatWasNotBuiltIsToldHow",
        "test_the_demo_builds_what_it_proposes_to_try_next",
    ),
    "muster run: neither PATH nor directory come along, and nobody says so": (
        "cli_test:CliTest.RunSaysThatPathAndDirectoryDontComeAlongAndHowTheyWould",
        "ask_test:FailureText.NamesTheFieldThatAnEndIsAbout",
        "test_what_failed_is_told_with_its_line_and_its_field",
    ),
    "submit never shows its output, nor where it is": (
        "cli_test:CliTest.SubmitSaysWhereItsOutputIs",
    ),
    "in a pipe output comes after 'succeeded'": (
        "cli_test:CliTest.InAPipeOutputComesBeforeTheLineThatTellsItsEnd",
    ),
    "run --cpu=1 -- hostname: no such option: --": (
        "cli_test:CliTest.AWrongOptionBeforeTheCommandIsNamedNotTheDashes",
    ),
    "without XDG_RUNTIME_DIR: start it; it is up already": (
        "cli_up_test:UpTest.WithoutTheRuntimeDirectoryItIsFoundToo",
        "cli_test:CliTest.UnderSudoItSaysWhoseMusterThatIs",
    ),
    "up --data-dir X ends with a muster down that addresses another": (
        "cli_up_test:UpTest.AnotherDirectoryIsNamedWhereverItIsNeeded",
    ),
    "after its socket was removed: start it; it is up already": (
        "cli_up_test:UpTest.ASocketThatWasRemovedComesBack",
    ),
    "validate calls valid what submit refuses": (
        "cli_test:CliTest.ValidateAsksTheServerWhetherAnyClusterCouldHoldIt",
        "test_validate_and_submit_agree_on_what_no_host_can_hold",
    ),
    "ddp.yaml is valid, and fails on its directory": (
        "cli_test:CliTest.AWorkdirThatIsNotHereIsNotedBeforeTheJobFailsOnIt",
    ),
    "cancel <TAB> offers ended jobs": (
        "cli_test:CliTest.CompletionOffersToCancelOnlyWhatHasNotEnded",
    ),
    "explain cuts the victims": (
        "cli_render_test:ExplainTest.SaysWhyUntilWhenAndWhatWouldHelp",
        "cli_render_test:TableTest.ALastColumnThatWrapsIsNeverCut",
    ),
    "at 60 columns jobs drops NAME": ("cli_render_test:JobsTest.OnANarrowScreenTheNameStays",),
    "prose breaks inside words": (
        "cli_render_test:FormatTest.LongLinesAreBrokenBetweenWordsAndGoOnFurtherIn",
    ),
    "top does not know q": ("cli_test:CliTest.QEndsWhatDrawsItselfAgain",),
    "out of memory names neither limit nor field": (
        "ask_test:FailureText.NamesTheFieldThatAnEndIsAbout",
    ),
    "a failed setup does not quote its line": (
        "agent_shim_test:Isolation/ShimTest.AFailedSetupStartsNothing/*",
        "agent_files_test:LogsTest.TheCauseOfAnEndIsToldFromTheLogOfItsRank",
        "test_what_failed_is_told_with_its_line_and_its_field",
    ),
    "a drained host counts as missing cpus": (
        "ask_test:Explain.OfDrainedHostsNothingIsMissing",
        "test_a_drained_host_is_named_and_its_cores_are_not_missing",
    ),
    "RUNNING means two things in queue list and top": (
        "cli_render_test:FleetTest.JobsOfAQueueAndJobsOfAFlavourHaveTheirOwnColumns",
        "ask_test:Top.AJobThatHoldsAnythingOfARowRunsThereWhateverElseItWaitsFor",
        "test_a_cpu_job_counts_alike_in_queue_list_and_top",
    ),
    "cancelled: cancel: cancelled by root": (
        "cli_render_test:JobsTest.WhoCancelledItIsSaidOnce",
        "test_who_cancelled_a_job_is_said_once",
    ),
    "submit takes one file only": ("cli_test:CliTest.SeveralFilesAreSubmittedTogetherOrNotAtAll",),
    "files of Slurm and SkyPilot get no hint": (
        "cli_test:CliTest.FilesOfOtherSchedulersAreRecognisedAndTranslated",
    ),
    "a program's escape sequences reach the terminal": (
        "cli_test:CliTest.AProgramsEscapesDontReachTheTerminalAndArriveWholeInAPipe",
        "cli_render_test:EscapesTest.ColoursReachATerminalAndNothingThatMovesItDoes",
    ),
    "muster up gives up after six ends within a minute": (
        "cli_up_test:UpTest.WhatKeepsEndingIsStartedAgainAndJobsSaysSo",
        "cli_test:RestartPauseTest.PausesGrowAndNeverEndAndAGoodRunForgetsThem",
    ),
    "in architecture.svg a line runs over its box": (
        "test_every_line_of_the_architectures_picture_stays_in_its_box",
    ),
    "a test is skipped for want of matplotlib": (
        "test_nothing_is_skipped_for_want_of_a_package_that_can_be_pinned",
        "test_every_plot_is_a_picture_and_the_same_again",
    ),
    "explain proposes priority 51, then 52, then 53": (
        "ask_test:Explain.APriorityIsProposedWithWhatItCostsTheQueuesOthers",
    ),
}


def passed_of(report: Path) -> dict[str, bool]:
    """Suite.name (gtest) or name (pytest) -> whether it ran and passed."""
    results = {}
    if not report.exists():
        return results
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        bad = any(case.find(tag) is not None for tag in ("failure", "error", "skipped"))
        ran = case.get("status", "run") == "run"
        for name in (case.get("name"), f"{case.get('classname')}.{case.get('name')}"):
            results[name] = ran and not bad
    return results


def run_all(folder: Path) -> dict[str, bool]:
    programs: dict[str, list[str]] = {}
    names = []
    for test in {test for tests in POINTS.values() for test in tests}:
        program, _, name = test.partition(":")
        programs.setdefault(program, []).append(name) if name else names.append(program)
    results = {}
    for program, filters in programs.items():
        report = folder / f"{program}.xml"
        subprocess.run(
            [
                TESTS / program,
                f"--gtest_filter={':'.join(filters)}",
                f"--gtest_output=xml:{report}",
                "--gtest_brief=1",
            ],
            stdout=sys.stderr,
            timeout=120,
        )
        results |= {f"{program}:{name}": passed for name, passed in passed_of(report).items()}
    report = folder / "system.xml"
    subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *("--junitxml", str(report), "-k", " or ".join(names)),
            *("tests/system/test_newcomer.py", "tests/system/test_simulator.py"),
        ],
        cwd=ROOT,
        stdout=sys.stderr,
        timeout=300,
    )
    return results | passed_of(report)


def holds(test: str, results: dict[str, bool]) -> bool:
    if not test.endswith("/*"):
        return results.get(test, False)
    of = [passed for name, passed in results.items() if name.startswith(test[:-1])]
    return bool(of) and all(of)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="the same: it is quick")
    parser.parse_args()
    os.environ.setdefault("MUSTER_BIN_DIR", str(ROOT / "build" / "release" / "bin"))
    with tempfile.TemporaryDirectory(prefix="muster-newcomer-") as folder:
        results = run_all(Path(folder))
    mended = 0
    for point, tests in POINTS.items():
        missed = [test for test in tests if not holds(test, results)]
        mended += not missed
        print(f"{'MISSED' if missed else 'ok':6} {point}{''.join(f'  {test}' for test in missed)}")
    figure("newcomer.found", len(POINTS), "points")
    figure("newcomer.mended", mended, "points", f"= {len(POINTS)}", mended == len(POINTS))
    return 0 if mended == len(POINTS) else 1


if __name__ == "__main__":
    sys.exit(main())
