"""The skill: well formed, its links lead somewhere, and its commands run exactly as written."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from agents.install import SKILL

PROJECT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# In the order of the loop: later ones use the captures of earlier ones.
ORDER = (
    "SKILL.md",
    *(f"references/{name}.md" for name in ("compile", "digest", "findings", "verify", "tools")),
)


def commands(folder: Path) -> list[str]:
    """The `sh` blocks of an installed skill, as written."""
    return [
        block for name in ORDER for kind, block in FENCE.findall((folder / name).read_text()) if kind == "sh"
    ]


def environment(folder: Path) -> dict[str, str]:
    """With `megascope` on the path, as after an installation."""
    shim = folder / "bin" / "megascope"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{PROJECT}/megascope.py" "$@"\n')
    shim.chmod(0o755)
    return {**os.environ, "PATH": f"{shim.parent}:{os.environ['PATH']}"}


def test_front_matter() -> None:
    text = (SKILL / "SKILL.md").read_text()
    _, matter, body = text.split("---\n", 2)
    fields = dict(line.split(": ", 1) for line in matter.strip().splitlines())
    assert fields["name"] == "megascope"
    assert 50 < len(fields["description"]) <= 1024
    assert len(body.splitlines()) < 200


def test_every_file_is_linked_and_every_link_leads_to_a_file() -> None:
    assert {str(p.relative_to(SKILL)) for p in SKILL.rglob("*.md")} == set(ORDER)
    linked = set()
    for name in ORDER:
        file = SKILL / name
        for target in re.findall(r"\]\(([^)]+)\)", file.read_text()):
            assert (file.parent / target).is_file(), f"{name}: {target}"
            linked.add(str((file.parent / target).resolve().relative_to(SKILL.resolve())))
    assert linked >= set(ORDER) - {"SKILL.md"}


def test_every_rule_named_exists() -> None:
    catalogue = (PROJECT / "docs/findings.md").read_text()
    for name in ORDER:
        for rule in re.findall(r"\bMS\d{3}\b", (SKILL / name).read_text()):
            assert f"### {rule}:" in catalogue, f"{name}: {rule}"


def test_every_command_is_in_a_block_that_the_test_below_runs() -> None:
    text = "\n".join(commands(SKILL))
    for verb in ("doctor", "compile", "report", "bounds", "show", "diff", "gate"):
        assert f"megascope {verb} " in text + " "
    for name in ORDER:
        for kind, block in FENCE.findall((SKILL / name).read_text()):
            assert kind in ("sh", "python"), f"{name}: {block}"


@pytest.mark.slow
def test_the_installed_commands_run_as_written(tmp_path: Path) -> None:
    pytest.importorskip("libtpu", reason="libtpu is not installed: nothing can be compiled for a TPU")
    known = environment(tmp_path)
    project = tmp_path / "project"
    project.mkdir()

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=project, env=known, capture_output=True, text=True, check=False)

    done = run("megascope", "agent", "install")
    assert done.returncode == 0, done.stderr
    blocks = commands(project / ".claude/skills/megascope")
    assert len(blocks) >= 10
    printed = []
    for block in blocks:
        done = run("bash", "-euo", "pipefail", "-c", block)
        assert done.returncode == 0, f"{block}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        printed.append(done.stdout)
    # What the text says about them is so.
    assert "bound by DMA latency" in printed[0]
    assert re.search(r"findings.*\n +\S+ \S+ +MS101 ", printed[0])
    assert "gate passed" in printed[2]
    assert "disappeared MS101" in printed[2]
