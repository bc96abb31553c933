"""`megascope report` as a shell sees it: formats, files, exit codes, start-up cost."""

import importlib
import json
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import analyzer
from analyzer import cli
from analyzer.errors import UsageError

ROOT = Path(__file__).parents[2]


def megascope(*arguments, **environment):
    return subprocess.run(
        [sys.executable, str(ROOT / "megascope.py"), *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        env=os.environ | environment,
    )


@pytest.fixture
def home(tmp_path):
    """A cache folder of its own for what reports of bare dumps keep."""
    return {"XDG_CACHE_HOME": str(tmp_path / "cache")}


@pytest.fixture
def dump(compiled):
    """A bare dump folder of the MLP kernel."""
    return compiled("layers=2") / "dump"


def test_report_of_a_bare_dump_folder(home, dump):
    done = megascope("report", dump, "--chip", "tpu7x", **home)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.rstrip("\n").split("\n")
    assert len(lines) <= 30
    assert max(map(len, lines)) <= 100
    assert "(modelled)" in lines[1]
    assert "\x1b" not in done.stdout
    assert re.search(r"\d of [\d,]+ instructions not understood; scenario default, \d+ assumed", done.stdout)


def test_json_on_stdout_alone_and_the_second_time_from_what_was_kept(home, tmp_path, dump):
    first = megascope("report", dump, "--chip", "tpu7x", "--format", "json", **home)
    report = json.loads(first.stdout)
    assert report["schema_version"] == "1.0"
    assert report["capture"]["kind"] == "dump"
    kept = list((tmp_path / "cache").rglob("analysis.json"))
    assert len(kept) == 1
    assert kept[0].with_name("timeline.parquet").exists()
    before = kept[0].stat().st_mtime_ns
    second = megascope("report", dump, "--chip", "tpu7x", "--format", "json", **home)
    assert second.stdout == first.stdout
    assert kept[0].stat().st_mtime_ns == before
    kept[0].write_bytes(kept[0].read_bytes().replace(b'"time_ps": ', b'"time_ps": 9', 1))
    third = megascope("report", dump, "--chip", "tpu7x", "--format", "json", **home)
    assert third.stdout == first.stdout
    kept[0].with_name("timeline.parquet").write_bytes(b"PAR1 damaged")
    fourth = megascope("report", dump, "--chip", "tpu7x", "--format", "json", **home)
    assert fourth.stdout == first.stdout


def test_a_what_if_changes_the_step_and_says_so(home, dump):
    def run(*more):
        done = megascope("report", dump, "--chip", "tpu7x", "--format", "json", *more, **home)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    plain, slow = run(), run("--what-if", "hbm.bandwidth=/2")
    assert slow["step"]["time_ps"] > plain["step"]["time_ps"]
    assert any(note.startswith("what-if: hbm.bandwidth") for note in slow["notes"])
    assert not any(note.startswith("what-if") for note in run()["notes"])


def test_output_file_appears_whole(home, tmp_path, dump):
    target = tmp_path / "report.md"
    done = megascope("report", dump, "--chip", "tpu7x", "--format", "md", "-o", target, **home)
    assert done.returncode == 0
    assert done.stdout == ""
    assert target.read_text().startswith("# ")
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["report.md"]
    deep = tmp_path / "new" / "folders" / "r.txt"
    assert megascope("report", dump, "--chip", "tpu7x", "-o", deep, **home).returncode == 0
    assert "(modelled)" in deep.read_text().split("\n")[1]
    below_a_file = megascope("report", dump, "--chip", "tpu7x", "-o", target / "r.txt", **home)
    assert below_a_file.returncode == 3
    assert "cannot be written: " in below_a_file.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("report", "/nowhere/at/all"), 3, "does not exist"),
        (("report",), 2, "Missing argument"),
        (("report", ".", "--format", "pdf"), 2, "no such format"),
    ],
)
def test_exit_codes(arguments, code, words):
    done = megascope(*arguments)
    assert done.returncode == code
    assert words in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--chip", "tpu99"), "no machine file"),
        (("--what-if", "hbm.speed=x2"), "no such parameter"),
        (("--what-if", "hbm.bandwidth=fast"), "not a number"),
        (("--what-if", "hbm.bandwidth=inf"), "infinite"),
        (("--what-if", "hbm.bandwidth=x0"), "a rate of 0"),
        (("--rule", "MS9xx"), "no such rule. Rules: MS101, "),
        (("--set", "colour=1"), "no such scenario value"),
        (("--set", "pops.k.py:3=x"), "not an integer"),
        (("--program", "nothing"), "program nothing"),
        (("--format", "pdf"), "no such format"),
        (("--what-if", "fast"), "NAME=VALUE"),
    ],
)
def test_wrong_values_are_usage_errors(more, words, dump, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    app = typer.Typer()
    cli.register(app)
    app.command("other")(lambda: None)
    chip = () if "--chip" in more else ("--chip", "tpu7x")
    with pytest.raises(UsageError, match=words) as raised:
        CliRunner().invoke(app, ["report", str(dump), *chip, *more], catch_exceptions=False)
    assert raised.value.exit_code == 2
    assert "\n" not in str(raised.value)


def test_html_of_a_part_is_refused(dump, monkeypatch):
    from analyzer.reports import OUTSIDE_FORMATS

    monkeypatch.setitem(OUTSIDE_FORMATS, "html", "nowhere:nothing")
    app = typer.Typer()
    cli.register(app)
    app.command("other")(lambda: None)
    with pytest.raises(UsageError, match="html: always shows the whole report"):
        CliRunner().invoke(
            app, ["report", str(dump), "--format", "html", "--limit", "3"], catch_exceptions=False
        )


def test_folders_and_files_without_bundles_name_the_cure(tmp_path, dump):
    empty = tmp_path / "empty"
    empty.mkdir()
    posing = tmp_path / "posing"
    posing.mkdir()
    (posing / "1796057792323055796-mlp.1-03-schedule-analysis_final_bundles.txt").write_text(
        "Schedule analysis:\ntotal bundles: 12\n"
    )
    cases = [(empty, "empty"), (posing, "schedule anal")]
    source = next(p for p in dump.glob("*mlp*final_bundles.txt") if "schedule-analysis" not in p.name)
    broken = tmp_path / "broken"
    broken.mkdir()
    data = source.read_bytes()
    (broken / source.name).write_bytes(data[: len(data) // 2])
    cases.append((broken, "truncated"))
    for folder, words in cases:
        done = megascope("report", folder, "--chip", "tpu7x", XDG_CACHE_HOME=str(tmp_path / "c"))
        assert done.returncode == 3, (folder, done.stderr)
        assert words in done.stderr
        assert len(done.stderr.strip().split("\n")) == 1


def test_pairs():
    assert cli.pairs("--set", ["a.b=x2", " c = 3=4"]) == {"a.b": "x2", "c": "3=4"}
    assert cli.pairs("--set", None) == {}
    with pytest.raises(UsageError):
        cli.pairs("--set", ["=3"])


def test_help_through_typer():
    app = typer.Typer()
    cli.register(app)
    app.command("other")(lambda: None)
    shown = CliRunner().invoke(app, ["report", "--help"])
    assert shown.exit_code == 0
    for option in ("--format", "--chip", "--what-if", "--set", "--output"):
        assert option in re.sub("\x1b\\[[0-9;]*m", "", shown.output)


def test_no_module_of_the_analyzer_imports_jax():
    names = sorted(m.name for m in pkgutil.walk_packages(analyzer.__path__, "analyzer."))
    assert "analyzer.analysis" in names
    probe = (
        "import importlib, sys\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "heavy = ('jax', 'jaxlib', 'megakernels', 'dashboard', 'dash', 'plotly')\n"
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.stdout.strip() == "[]", done.stderr
    for name in names:
        importlib.import_module(name)
