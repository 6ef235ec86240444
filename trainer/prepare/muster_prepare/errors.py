"""What may go wrong, said to the user and never as a traceback."""

import errno


class InputError(Exception):
    """Something the user can repair. `problems` are whole lines, most with FILE or FILE:LINE in front."""

    def __init__(self, *problems: str):
        super().__init__("\n".join(problems))
        self.problems = list(problems)

    def __reduce__(self):  # so that it crosses a process boundary whole
        return (InputError, tuple(self.problems))


class Stopped(Exception):
    """SIGTERM or SIGINT came. `signal_number` decides the exit code (128 + it)."""

    def __init__(self, signal_number: int):
        super().__init__(signal_number)
        self.signal_number = signal_number


def write_problem(error: OSError, path: str) -> str:
    """One line for a failed write; a full disk is named as such."""
    where = error.filename or path
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        what = {
            errno.ENOSPC: "the disk is full",
            errno.EDQUOT: "the disk quota is used up",
            errno.EFBIG: "the file would be larger than this process may write",
        }[error.errno]
        return f"{where}: {what}; finished shards are kept, the same command goes on from them"
    return f"{where}: {error.strerror or error}"
