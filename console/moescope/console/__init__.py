"""The `moescope` command: wires the components together."""
