"""TensorBoard's event files, written as its own writer does: records with masked CRC-32C, each an Event message.

The file is the exporter's own, so what it holds beyond the place that was committed is cut off, and points that are to be taken back mean a new file in its
place.
"""

import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

_TABLE = []
for _byte in range(256):
    for _ in range(8):
        _byte = (_byte >> 1) ^ (0x82F63B78 if _byte & 1 else 0)
    _TABLE.append(_byte)


def _masked_crc(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return (
        length
        + struct.pack("<I", _masked_crc(length))
        + data
        + struct.pack("<I", _masked_crc(data))
    )


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _text(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _event(at_s: float, step: int, rest: bytes) -> bytes:
    return _record(b"\x09" + struct.pack("<d", at_s) + b"\x10" + _varint(step) + rest)


def _scalar(key: str, step: int, value: float, at_ns: int) -> bytes:
    limited = max(-3.4e38, min(3.4e38, value))  # a float of 32 bits
    value_ = _text(1, key.encode()) + b"\x15" + struct.pack("<f", limited)
    return _event(at_ns / 1e9, step, _text(5, _text(1, value_)))


def _header() -> bytes:
    """Its version; and that a session begins, which makes a TensorBoard that is looking drop what it has."""
    now_s = time.time()
    return _event(now_s, 0, _text(3, b"brain.Event:2")) + _event(now_s, 0, _text(7, b"\x08\x01"))


class TensorBoard:
    may_have_unsure = False  # what isn't committed is cut off

    def __init__(self, directory: Path):
        self._directory = directory

    def keeps_first(self, key: str) -> bool:
        return False

    def write(self, place: dict, about: dict, points: list[tuple]) -> dict:
        place = self._settled(place)
        if "file" not in place:
            return self._new(place, about, points)
        path = self._directory / place["file"]
        if not path.exists() or path.stat().st_size < place["bytes"]:
            raise OSError(
                f"{path}: is gone or shorter than it was; the exporter writes it, and nobody else"
            )
        with open(path, "r+b") as file:
            file.truncate(place["bytes"])
            file.seek(place["bytes"])
            return self._put(file, place["file"], points)

    def rewrite(self, place: dict, about: dict, points: list[tuple]) -> dict:
        place = self._settled(place)
        return self._new(place, about, points) | {"old": place.get("file", "")}

    def settle(self, place: dict, about: dict) -> dict:
        self._clear(place, about)
        return self._settled(place)

    def finish(self, place: dict, about: dict, points: Callable[[], list[tuple]]) -> None:
        if "file" in place:
            self._clear(place, about)

    def _clear(self, place: dict, about: dict) -> None:
        """What is there of this job besides the file that counts: of times before that were killed."""
        for left in self._directory.glob(f"*.{about['uid']}*"):
            if left.name != place.get("file"):
                left.unlink(missing_ok=True)

    def _settled(self, place: dict) -> dict:
        return {name: value for name, value in place.items() if name != "old"}

    def _new(self, place: dict, about: dict, points: list[tuple]) -> dict:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._clear(place, about)
        name = f"events.out.tfevents.{time.time_ns():020}.muster.{about['uid']}"
        hidden = self._directory / f".{about['uid']}.new"
        with open(hidden, "wb") as file:
            file.write(_header())
            new = self._put(file, name, points)
        os.rename(hidden, self._directory / name)
        directory = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        return new

    def _put(self, file, name: str, points: list[tuple]) -> dict:
        for key, step, value, at_ns in points:
            file.write(_scalar(key, step, value, at_ns))
        file.flush()
        os.fsync(file.fileno())
        return {"file": name, "bytes": file.tell()}
