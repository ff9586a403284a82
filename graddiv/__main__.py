"""`python -m graddiv` is the `graddiv` command."""

from graddiv.cli import main

main()
