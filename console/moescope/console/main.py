"""Entry point: runs a command and turns errors into messages and exit codes."""

from __future__ import annotations

import os
import sys

from moescope.core.errors import MoescopeError

INTERRUPTED = 130


def main() -> None:
    """Run the `moescope` command."""
    from moescope.console.app import app

    try:
        app(standalone_mode=True)
    except MoescopeError as error:
        print(f"moescope: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("moescope: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output went away (`| head`): nothing is wrong.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        if os.environ.get("MOESCOPE_TRACEBACK"):
            raise
        print(
            f"moescope: internal error: {type(error).__name__}: {error}\n"
            "Why: this is a fault of moescope itself.\n"
            "Next: run again with MOESCOPE_TRACEBACK=1 and report what it prints.",
            file=sys.stderr,
        )
        sys.exit(70)
