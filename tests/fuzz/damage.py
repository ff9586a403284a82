"""Ways to damage the content of a file."""

import json
import random
from collections.abc import Callable
from typing import Any

from graddiv import store

Mutation = Callable[[random.Random, bytes], bytes]


def flip_a_bit(chance: random.Random, content: bytes) -> bytes:
    place = chance.randrange(len(content))
    return content[:place] + bytes([content[place] ^ 1 << chance.randrange(8)]) + content[place + 1 :]


def flip_a_bit_at_the_beginning(chance: random.Random, content: bytes) -> bytes:
    """Where headers are."""
    half = min(len(content), 2000)
    return flip_a_bit(chance, content[:half]) + content[half:]


def cut(chance: random.Random, content: bytes) -> bytes:
    return content[: chance.randrange(len(content))]


def change_some_bytes(chance: random.Random, content: bytes) -> bytes:
    place, count = chance.randrange(len(content)), chance.choice([1, 2, 8, 64])
    return content[:place] + chance.randbytes(count) + content[place + count :]


def insert_bytes(chance: random.Random, content: bytes) -> bytes:
    place = chance.randrange(len(content))
    odd = [b"\x00", b"\n", b'"', b"}", b"[" * 500, b"9" * 5000, b"\xff\xfe", b"NaN", b"1e999", chance.randbytes(9)]
    return content[:place] + chance.choice(odd) + content[place:]


def delete_bytes(chance: random.Random, content: bytes) -> bytes:
    place = chance.randrange(len(content))
    return content[:place] + content[place + chance.choice([1, 2, 7, 100]) :]


def swap_bytes(chance: random.Random, content: bytes) -> bytes:
    size = max(1, len(content) // chance.choice([4, 16, 64]))
    a, b = sorted((chance.randrange(len(content)), chance.randrange(len(content))))
    return content[:a] + content[b : b + size] + content[a + size : b] + content[a : a + size] + content[b + size :]


def replace_all(chance: random.Random, content: bytes) -> bytes:
    nested = b'{"a": ' * 900 + b"1" + b"}" * 900
    odd = [b"", b"[]", b"null", b"{}", b"\xff" * 8 + content[8:], nested, b"[" * 9000, b"PK\3\4", b"1" * 6000, b"\n"]
    return chance.choice(odd)


ODD_VALUES: list[Any] = [
    *(None, True, False, 0, -1, 2**63, 10**30, -0.5, 1e308, float("nan"), "", "x", "é", "1" * 5000),
    *([], [1], [[[]]], {}, {"a": {"b": 1}}, [None], [-1, 10**20]),
]


def change_a_value(chance: random.Random, content: bytes) -> bytes:
    """Change, rename or remove something in a JSON text, or in the JSON header of a safetensors file."""
    length = int.from_bytes(content[:8], "little")
    tensor_file = length <= len(content)
    try:
        value = json.loads(content[8 : 8 + length] if tensor_file else content)
        if tensor_file and chance.random() < 0.5:
            inner = json.loads(value["__metadata__"][store.DESCRIPTION])
            _spoil(chance, inner)
            value["__metadata__"][store.DESCRIPTION] = json.dumps(inner)
        else:
            _spoil(chance, value)
    except (ValueError, TypeError, LookupError):
        return flip_a_bit(chance, content)
    text = json.dumps(value).encode()
    return len(text).to_bytes(8, "little") + text + content[8 + length :] if tensor_file else text


def change_a_value_and_the_checksum(chance: random.Random, content: bytes) -> bytes:
    """As somebody would do it by hand who knows how the checksum is made: readers may believe it, but not crash."""
    return _sealed_anew(change_a_value(chance, content))


def _spoil(chance: random.Random, value: Any) -> None:
    places: list[tuple[Any, Any]] = []
    todo = [value]
    while todo:
        part = todo.pop()
        keys = list(part) if isinstance(part, dict) else list(range(len(part))) if isinstance(part, list) else []
        places += [(part, key) for key in keys]
        todo += [part[key] for key in keys]
    part, key = chance.choice(places)
    match chance.randrange(4) if isinstance(part, dict) else 3:
        case 0:
            del part[key]
        case 1:
            part[f"{key}x"] = part.pop(key)
        case 2:
            other = chance.choice(list(part))
            part[key], part[other] = part[other], part[key]
        case _:
            part[key] = chance.choice(ODD_VALUES)


def _sealed_anew(content: bytes) -> bytes:
    length = int.from_bytes(content[:8], "little")
    try:
        header = json.loads(content[8 : 8 + length])
        about = json.loads(header.pop("__metadata__")[store.DESCRIPTION])
    except (ValueError, TypeError, LookupError):
        return content
    text = json.dumps(header).encode()
    return store._with_description(len(text).to_bytes(8, "little") + text + content[8 + length :], about)


DAMAGE: tuple[Mutation, ...] = (
    flip_a_bit, flip_a_bit_at_the_beginning, cut, change_some_bytes, insert_bytes, delete_bytes, swap_bytes,
    replace_all, change_a_value,
)  # fmt: skip
