"""`python -m moescope` is the `moescope` command."""

from moescope.console.main import main

if __name__ == "__main__":
    main()
