"""A process that dies in the middle of its work with files: to be called in a forked child."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

OPERATIONS = ((os, "open"), (os, "fsync"), (Path, "open"), (Path, "replace"), (Path, "unlink"), (Path, "mkdir"))
"""What asks the system to do something with a file; the bytes of a file reach it between two of these."""


def die_at(number: int) -> None:
    """Let this process die before its n-th operation; a file that is being flushed then has half of its bytes."""
    calls = 0

    def deadly(operation: Callable[..., Any], flushes: bool) -> Callable[..., Any]:
        def called(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == number:
                if flushes and Path(f"/proc/self/fd/{arguments[0]}").readlink().suffix == ".tmp":
                    os.ftruncate(arguments[0], os.fstat(arguments[0]).st_size // 2)
                os.kill(os.getpid(), signal.SIGKILL)
            return operation(*arguments, **options)

        return called

    for owner, name in OPERATIONS:
        setattr(owner, name, deadly(getattr(owner, name), name == "fsync"))
