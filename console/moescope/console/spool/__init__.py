"""The command spool: how the command line asks a running owner to change something.

Why files: `docs/decisions/0010-command-spool.md`.
"""
