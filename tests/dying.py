"""Children that work, and die in the middle of their work with files."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.helpers import no_type_checks

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


def forked(work: Callable[[], object]) -> int:
    """Do it in a child: forked, since importing torch takes longer than all of the training."""
    child = os.fork()
    if child:
        return child
    try:
        with no_type_checks():
            work()
        os._exit(0)
    except BaseException:
        os._exit(1)


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
