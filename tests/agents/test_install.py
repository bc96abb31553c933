"""`megascope agent install`: layouts, updates, edited files."""

import json
from pathlib import Path

import pytest

from agents import install as module
from agents.install import BEGIN, LAYOUTS, NOTE, RECORD, install, skill_files
from analyzer.errors import InputError, UsageError


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_layout(tmp_path, layout):
    written = install(tmp_path, (layout,))
    folder = tmp_path / LAYOUTS[layout] / "megascope"
    assert {name: data for name, data in tree(folder).items() if name != RECORD} == skill_files()
    assert [one.state for one in written] == ["written"] * len(skill_files())
    assert [p.name for p in folder.parent.iterdir()] == ["megascope"]
    again = tree(tmp_path)
    assert {one.state for one in install(tmp_path, (layout,))} == {"unchanged"}
    assert tree(tmp_path) == again


def test_edited_files_are_kept_and_nothing_else_is_written(tmp_path):
    install(tmp_path, ("claude",))
    edited = tmp_path / ".claude/skills/megascope/references/verify.md"
    edited.write_text("mine")
    before = tree(tmp_path)
    with pytest.raises(UsageError, match=r"verify\.md: was changed .* --force"):
        install(tmp_path, ("agents", "claude"))
    assert tree(tmp_path) == before
    install(tmp_path, ("claude",), force=True)
    assert edited.read_bytes() == skill_files()["references/verify.md"]


def test_a_file_that_was_never_ours_is_not_overwritten(tmp_path):
    mine = tmp_path / ".agents/skills/megascope/SKILL.md"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    with pytest.raises(UsageError, match="was changed"):
        install(tmp_path, ("agents",))
    assert mine.read_text() == "mine"


def test_a_new_version_replaces_its_own_files(tmp_path, monkeypatch):
    old = {"SKILL.md": b"old", "references/gone.md": b"gone", "references/kept.md": b"kept"}
    monkeypatch.setattr(module, "skill_files", lambda: old)
    install(tmp_path, ("agents",))
    folder = tmp_path / ".agents/skills/megascope"
    (folder / "references/kept.md").write_text("changed by the user")
    (folder / "own.md").write_text("the user's")
    monkeypatch.undo()
    states = {one.path.name: one.state for one in install(tmp_path, ("agents",))}
    assert states["SKILL.md"] == "replaced"
    assert states["gone.md"] == "removed"
    assert not (folder / "references/gone.md").exists()
    assert (folder / "references/kept.md").read_text() == "changed by the user"
    assert (folder / "own.md").read_text() == "the user's"
    assert json.loads((folder / RECORD).read_text())["files"].keys() == skill_files().keys()


def test_a_record_cannot_remove_files_elsewhere(tmp_path):
    install(tmp_path, ("agents",))
    victim = tmp_path / "victim.md"
    victim.write_text("x")
    folder = tmp_path / ".agents/skills/megascope"
    (folder / RECORD).write_text(json.dumps({"files": {"../../../victim.md": module._hash(b"x")}}))
    install(tmp_path, ("agents",))
    assert victim.exists()


def test_agents_md_keeps_what_the_user_wrote(tmp_path):
    path = tmp_path / "AGENTS.md"
    path.write_text("# Mine\n\nBe kind.")
    install(tmp_path, ("agents-md",))
    text = path.read_text()
    assert text == "# Mine\n\nBe kind.\n\n" + NOTE
    assert (tmp_path / ".agents/skills/megascope/SKILL.md").is_file()
    install(tmp_path, ("agents-md",))
    assert path.read_text() == text
    path.write_text(text.replace("read `", "maybe read `") + "More.\n")
    with pytest.raises(UsageError, match=r"AGENTS\.md: was changed"):
        install(tmp_path, ("agents-md",))
    install(tmp_path, ("agents-md",), force=True)
    assert path.read_text() == text + "More.\n"
    assert path.read_text().count(BEGIN) == 1


def test_refusals(tmp_path):
    with pytest.raises(UsageError, match="no such layout"):
        install(tmp_path, ("emacs",))
    with pytest.raises(UsageError, match="is not a folder"):
        install(tmp_path / "nowhere", ("agents",))
    (tmp_path / ".agents").write_text("a file")
    with pytest.raises(InputError, match="cannot be written"):
        install(tmp_path, ("agents",))


def test_what_a_link_points_to_is_written_once(tmp_path):
    install(tmp_path, ("agents",))
    (tmp_path / ".claude/skills").mkdir(parents=True)
    (tmp_path / ".claude/skills/megascope").symlink_to(tmp_path / ".agents/skills/megascope")
    assert {one.state for one in install(tmp_path, ("claude",))} == {"unchanged"}
    assert (tmp_path / ".claude/skills/megascope").is_symlink()
