"""Code and commands of Markdown files, for the tests that run them."""

import re
from collections.abc import Iterator


def blocks(text: str, *languages: str) -> list[str]:
    """The fenced blocks of these languages; "" is none."""
    return re.findall(rf"^```(?:{'|'.join(languages)})\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def commands(text: str, program: str) -> Iterator[str]:
    """Every line of a shell block or of indented code, and every `command` in the text, that calls the program."""
    lines = [line for block in blocks(text, "", "sh", "bash", "console") for line in block.splitlines()]
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    indented = re.findall(r"^    (\S.*)$", prose, re.MULTILINE)
    for line in [*lines, *indented, *re.findall(r"`([^`\n]+)`", prose)]:
        command = line.split(" #")[0].removeprefix("$ ").strip()
        if command.startswith(f"{program} "):
            yield command
