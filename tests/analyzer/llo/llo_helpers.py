"""Shared by the tests of analyzer/llo: where sample dumps are, and a plain reader to compare with."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
GOLDENS = ROOT / "tests/goldens/llo"
OTHER_VERSIONS = sorted((ROOT / "tests/goldens").glob("llo-*"))  # of other libtpu versions
SHARED = ROOT / "../shared/data"
KEY = """= control target key start
LH: loop header
LB: loop body
LE: loop exit
PB: predicated region body
PF: predicated region fallthrough
CT: control target
= control target key end

"""
CHIPS = ("tpu7x", "v6e", "v5p", "v5e")


def bundles_files(folder: Path) -> list[Path]:
    """Every final_bundles file below a folder."""
    return sorted(folder.rglob("*-final_bundles.txt")) if folder.is_dir() else []


def sample_files() -> list[Path]:
    """The goldens, and the public dumps where they are at hand."""
    folders = (GOLDENS, *OTHER_VERSIONS, SHARED / "v6e-matmul", SHARED / "old-formats")
    return [file for folder in folders for file in bundles_files(folder)]


def listing(*lines: str) -> bytes:
    """A bundles file of these bundle bodies; a line may carry its own label: `LB|{ ... } /* ... */`."""
    out = [KEY]
    for address, line in enumerate(lines):
        label, bar, body = line.partition("|") if re.match(r"[A-Z]{2}\|", line) else ("", "", line)
        del bar
        where = hex(address) if address else "0"
        out.append(f"{where:>6} {label:2}: {body}\n")
    return "".join(out).encode()


def plain_bundles(data: bytes) -> list[tuple[int, str | None, list[str], str]]:
    """The bundles of a sound file by a slow reader of its own: (address, label, instructions, trailer).

    Goes character by character and knows only that comments may nest and that braces balance.
    """
    text = data.decode("utf-8", "replace")
    head = re.compile(r"^[ \t]*(0x[0-9a-f]+|0)[ ]+([A-Z]{2})?[ ]*:[> ]*\{", re.MULTILINE)
    out = []
    position = 0
    while (found := head.search(text, position)) is not None:
        pieces, start, index = [], found.end(), found.end()
        comment = brace = 0
        while True:
            two = text[index : index + 2]
            if two == "/*":
                comment += 1
                index += 2
            elif two == "*/":
                comment -= 1
                index += 2
            elif comment:
                index += 1
            elif two == ";;" and not brace:
                pieces.append(text[start:index].strip())
                index += 2
                start = index
            elif text[index] == "{":
                brace += 1
                index += 1
            elif text[index] == "}" and brace:
                brace -= 1
                index += 1
            elif text[index] == "}":
                pieces.append(text[start:index].strip())
                break
            else:
                index += 1
        following = head.search(text, index)
        stop = following.start() if following is not None else len(text)
        trailer = " ".join(text[index + 1 : stop].split())
        out.append((int(found[1], 16), found[2], [p for p in pieces if p], trailer))
        position = stop
    return out


def read_program_of(folder: Path, name: str):
    """The program of that name in a folder of dumps."""
    from analyzer.llo.reader import read_program

    return read_program(next(folder.glob(f"*-{name}-*-final_bundles.txt")))
