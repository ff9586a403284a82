"""Damage files and settings at random, and see whether anything is fooled or crashes.

    python -m tests.fuzz --minutes 10
    python -m tests.fuzz --table

Every reader is given files that were damaged in a random way.  It must refuse them with a `GradDivError`, or read what
was there before; a file with a checksum that is accepted with another content, and any other exception, is a failure.
The tests do the same for a few seconds.
"""
