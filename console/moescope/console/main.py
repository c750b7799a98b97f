"""Entry point: runs a command and turns errors into messages and exit codes."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

from moescope.console.failures import OutputClosedError, explained
from moescope.console.watch.quick_doctor import quick_answer

if TYPE_CHECKING:
    from typing import NoReturn

INTERRUPTED: Final = 130
INTERNAL_ERROR: Final = 70


def main() -> NoReturn:
    """Run the `moescope` command."""
    sys.exit(_run())


def _run() -> int:
    try:
        answered = quick_answer(sys.argv[1:])
        if answered is not None:
            return answered
        from moescope.console.app import app

        app(prog_name="moescope")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except KeyboardInterrupt:
        return INTERRUPTED
    except OutputClosedError:
        # What is still buffered would fail again when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:  # noqa: BLE001 (reported, with an exit code)
        return _report(error)
    return 0


def _report(error: Exception) -> int:
    known = explained(error)
    if known is not None:
        print(f"moescope: {known}", file=sys.stderr)
        return known.exit_code
    if os.environ.get("MOESCOPE_TRACEBACK"):
        raise error
    print(
        f"moescope: internal error: {type(error).__name__}: {error}\n"
        "Why: this is a fault of moescope itself.\n"
        "Next: run again with MOESCOPE_TRACEBACK=1 and report what it prints.",
        file=sys.stderr,
    )
    return INTERNAL_ERROR
