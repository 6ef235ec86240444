"""Which GPUs the trainer's kernels are compiled for: read from the fat binary that nvcc embeds."""

import struct
from pathlib import Path

import pytest

MAGIC, KINDS = 0xBA55ED50, {1: "PTX", 2: "code"}


def gpu_code(program: bytes) -> set[tuple[str, int]]:
    """(kind, architecture) of each part."""
    found = set()
    at = program.find(struct.pack("<IHH", MAGIC, 1, 16))
    while at >= 0:
        (size,) = struct.unpack_from("<Q", program, at + 8)
        part, end = at + 16, at + 16 + size
        while part < end:
            kind, _, header, length = struct.unpack_from("<HHIQ", program, part)
            found.add((KINDS[kind], struct.unpack_from("<I", program, part + 28)[0]))
            part += header + length
        at = program.find(struct.pack("<IHH", MAGIC, 1, 16), end)
    return found


def test_there_is_code_for_a100_and_h100_and_ptx_for_what_comes_after(trainer_bin):
    found = gpu_code(Path(trainer_bin).read_bytes())
    if not found:
        pytest.skip("built without nvcc")
    assert found == {("code", 80), ("code", 90), ("PTX", 90)}
