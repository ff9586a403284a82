"""`python -m graddiv` is the `graddiv` command."""

import sys

from graddiv.errors import explained


def main() -> None:
    """Run the command line, or say which extra it needs."""
    try:
        from graddiv.cli import main as run

        run()
    except ModuleNotFoundError as error:
        problem = explained(error)
        if problem is None:
            raise
        print(f"graddiv: {problem}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
