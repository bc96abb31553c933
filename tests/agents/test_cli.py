"""The two verbs as a shell sees them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]


def megascope(*arguments, code="import megascope; megascope.main()", cwd=PROJECT):
    return subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(PROJECT)!r}); {code}", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def test_install_says_what_it_wrote(tmp_path):
    done = megascope("agent", "install", "--format", "json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    files = json.loads(done.stdout)["files"]
    assert {Path(one["path"]).parts[0] for one in files} == {".agents", ".claude"}
    assert all((tmp_path / one["path"]).is_file() for one in files)
    (tmp_path / ".claude/skills/megascope/SKILL.md").write_text("mine")
    done = megascope("agent", "install", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "--force" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("missing", ["mcp", "mcp_types", "anyio"])
def test_without_the_extra_one_line_says_the_cure(tmp_path, missing):
    code = f"sys.modules[{missing!r}] = None; import megascope; megascope.main()"
    done = megascope("mcp", "--root", str(tmp_path), code=code)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "pip install" in done.stderr


def test_with_another_version_of_mcp_too(tmp_path):
    code = (
        "import types; fake = types.ModuleType('mcp.server.lowlevel'); "
        "sys.modules['mcp.server.lowlevel'] = fake; import megascope; megascope.main()"
    )
    done = megascope("mcp", "--root", str(tmp_path), code=code)
    assert done.returncode == 2
    assert "pip install 'mcp>=" in done.stderr


def test_a_root_that_is_none(tmp_path):
    done = megascope("mcp", "--root", str(tmp_path / "nowhere"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "is not a folder" in done.stderr


def test_starting_the_server_imports_nothing_heavy():
    code = (
        "from agents import cli, server, tools; "
        "print([m for m in ('jax', 'pandas', 'numpy', 'pyarrow', 'plotly', 'dash') if m in sys.modules])"
    )
    assert megascope(code=code).stdout.strip() == "[]"
