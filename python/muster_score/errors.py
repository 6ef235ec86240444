"""What ends a worker with a message of ours, and with which exit code: a job says with final_exit_codes after which of them no other try is made."""

WRONG = 2  # what was asked for, or the input: argparse ends so, too
AGAIN = 75  # EX_TEMPFAIL: another try may go better


class InputError(Exception):
    """The input, or what was asked for, is wrong: trying again doesn't help."""


class StoreFailed(Exception):
    """An object store didn't answer, again and again: later it may."""
