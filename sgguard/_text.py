"""Reading a policy file's text. Needs neither pydantic nor yaml, so it can run at start-up."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sgguard.errors import InvalidPolicyError, PolicyError, Problem
from sgguard.values import cut, escape, show

MAX_BYTES: Final = 256 * 1024


@dataclass(frozen=True)
class Mark:
    """A place in a text; both counted from 1."""

    line: int
    column: int


def read_text(path: str | os.PathLike[str]) -> str:
    """Read a policy file: UTF-8, with or without a byte order mark, at most 256 KiB.

    Raises:
        PolicyError: if the file is not there or cannot be read.
        InvalidPolicyError: if it is too large or not UTF-8.
    """
    try:
        name = os.fsdecode(path)
    except TypeError:
        raise PolicyError(f"a policy file is given by its path, not by {show(path)}") from None
    try:
        # A pipe that nobody writes to would hold up the start of the server. Shells hand
        # `<(command)` over as one, and that one has a writer.
        if stat.S_ISFIFO(os.stat(name).st_mode) and not name.startswith(("/dev/fd/", "/proc/")):
            raise OSError(errno.EINVAL, "it is a named pipe")
        with Path(name).open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        what = f"{cut(name, 300)}: cannot read the policy file: {reason}"
        raise PolicyError(escape(f"{what}; check the path and its rights")) from error
    if len(raw) > MAX_BYTES:
        message = f"the file is larger than {MAX_BYTES // 1024} KiB; this is no policy file"
        raise InvalidPolicyError(name, [Problem(message)])
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        message = f"byte 0x{raw[error.start]:02x} is not UTF-8; save the file as UTF-8"
        line = before.count(b"\n") + 1
        column = error.start - (before.rfind(b"\n") + 1) + 1
        raise InvalidPolicyError(name, [Problem(message, "", line, column)]) from error
