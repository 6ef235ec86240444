"""What ends a worker with a message of ours."""


class InputError(Exception):
    """The input, or what was asked for, is wrong: trying again doesn't help."""


class StoreFailed(Exception):
    """An object store didn't answer, again and again: later it may."""
