"""The tools through a client of the mcp package, on a small dump."""

import json
import os
import shutil
from pathlib import Path

import pytest

from agents import server
from analyzer.analysis import analyze

GOLDEN = Path(__file__).parents[1] / "goldens/llo/v6e"

ALL = {"compile", "report", "findings", "show", "diff", "gate", "what_if"}


def test_every_tool_is_listed_with_a_schema_and_what_it_may_do(caller):
    tools = caller.tools()
    assert set(tools) == ALL
    for name, tool in tools.items():
        assert tool.input_schema["additionalProperties"] is False
        assert all(p.get("description") for p in tool.input_schema["properties"].values()), name
        assert set(tool.input_schema["required"]) <= set(tool.input_schema["properties"])
        assert tool.annotations.read_only_hint is (name != "compile")
        assert len(tool.description) > 60


def test_read_only_leaves_compile_out(make_caller, root):
    limited = make_caller(root, read_only=True)
    assert set(limited.tools()) == ALL - {"compile"}
    text, _ = limited.error("compile", target="mlp", output="c")
    assert "no such tool" in text


def test_report_is_the_digest_and_the_figures_of_the_command(caller, root):
    answer = caller("report", capture="a")
    whole = analyze(root / "a", chip="v6e").report
    assert answer["step"] == whole["step"]
    assert answer["hbm"]["read_bytes"] == whole["hbm"]["read_bytes"]
    assert 5 < len(answer["digest"]) <= 30
    assert whole["step"]["verdict"] in "\n".join(answer["digest"])
    assert answer["capture"]["path"] == "a"


@pytest.mark.parametrize(
    "section", ["phases", "layers", "layer_kinds", "bubbles", "bubble_groups", "wait_groups", "notes"]
)
def test_report_pages_through_each_list(caller, root, section):
    expected = analyze(root / "a", chip="v6e").report[section]
    got, offset = [], 0
    while offset is not None:
        answer = caller("report", capture="a", section=section, limit=2, offset=offset)
        got += answer[section]
        offset = answer["page"]["next_offset"]
        assert answer["page"]["total"] == len(expected)
    assert got == expected


def test_slow_tools_tell_what_they_do_and_that_they_live(make_caller, tmp_path, monkeypatch):
    monkeypatch.setattr(server, "SECONDS_BETWEEN_BEATS", 0.005)
    shutil.copytree(GOLDEN, tmp_path / "new")  # in no cache, so that there is something to do
    heard = make_caller(tmp_path).told("what_if", capture="new", chip="v6e")
    assert [count for count, _ in heard] == sorted({count for count, _ in heard})
    messages = [message for _, message in heard]
    said = list(dict.fromkeys(message.rsplit(" (", 1)[0] for message in messages))
    assert next(one for one in said if not one.endswith(" begins")).startswith("simulating new")
    assert said[-1].startswith("simulating each ideal")
    assert len(messages) > len(said)  # each said once, then beats


def test_findings_in_full_and_in_brief(caller, root):
    expected = analyze(root / "a", chip="v6e").report["findings"]
    assert expected
    answer = caller("findings", capture="a", limit=50)
    assert answer["findings"] == expected
    brief = caller("findings", capture="a", limit=50, brief=True)["findings"]
    assert [one["id"] for one in brief] == [one["id"] for one in expected]
    assert "evidence" not in brief[0]
    family = caller("findings", capture="a", rules=["MS1xx"], limit=50)["findings"]
    assert [one["id"] for one in family] == [f["id"] for f in expected if f["id"].startswith("MS1")]
    absent = next(rule for rule in ("MS103", "MS601") if rule not in {f["id"] for f in expected})
    assert caller("findings", capture="a", rules=[absent])["page"]["total"] == 0


def test_show_pages_through_all_bundles_and_loops(caller):
    addresses, offset = [], 0
    while offset is not None:
        answer = caller("show", capture="a", limit=500, offset=offset)
        addresses += [bundle["address"] for bundle in answer["bundles"]]
        offset = answer["page"]["next_offset"]
    assert len(addresses) == answer["static_bundles"] == answer["page"]["total"]
    assert addresses == sorted(set(addresses))
    loops = caller("show", capture="a", list="loops")
    assert len(loops["loops"]) == loops["page"]["total"] == loops["loop_count"]
    some = caller("show", capture="a", opcode="dma.*", counts=False)["bundles"]
    assert some
    assert all("dma" in " ".join(bundle["instructions"]) for bundle in some)


def test_diff_and_gate_of_equals(caller):
    answer = caller("diff", a="a", b="b")
    assert answer["equal"] is True
    assert answer["figures"] == answer["phases"] == answer["findings"] == []
    assert caller("gate", a="a", b="b")["passed"] is True


def test_gate_says_why_it_fails_and_that_is_no_error(caller, root):
    report = json.loads(json.dumps(analyze(root / "a", chip="v6e").report))
    report["step"]["time_ps"] //= 2
    (root / "faster.json").write_text(json.dumps(report))
    answer = caller("gate", a="faster.json", b="a")
    assert answer["passed"] is False
    assert "step time grew by 100" in answer["reasons"][0]
    found = report["findings"][0]["id"]
    assert caller("gate", a="a", b="b", forbid=[found])["passed"] is False
    assert caller("gate", a="a", b="b", forbid_new=[found])["passed"] is True


def test_what_if(caller, root):
    step = analyze(root / "a", chip="v6e").report["step"]["time_ps"]
    ideals = caller("what_if", capture="a")
    assert ideals["step_ps"] == step
    assert {"infinite HBM", "no HBM latency"} <= {bound["name"] for bound in ideals["bounds"]}
    savings = [bound["saving_ps"] for bound in ideals["bounds"]]
    assert savings == sorted(savings, reverse=True)
    same = caller("what_if", capture="a", changes={"hbm.latency": "x1"})
    assert same["saving_ps"] == 0
    free = caller("what_if", capture="a", changes={"hbm.latency": 0})
    named = next(b for b in ideals["bounds"] if b["name"] == "no HBM latency")
    assert free["saving_ps"] == named["saving_ps"] > 0
    assert free["changes"]["hbm.latency"]["to"] == 0


def test_no_answer_is_longer_than_the_limit(make_caller, root):
    small = make_caller(root, most_bytes=4000, chip="v6e")
    calls = [("report", {}), ("findings", {"limit": 50}), ("show", {"limit": 500}), ("what_if", {})]
    calls += [
        ("report", {"section": section, "limit": 500}) for section in ("bubbles", "wait_groups", "notes")
    ]
    for tool, arguments in calls:
        done = small.result(tool, capture="a", **arguments)
        assert not done.is_error
        assert len(done.content[0].text) <= 4000, tool
        assert json.loads(done.content[0].text) == done.structured_content
    answer = small("show", capture="a", limit=500)
    assert 0 < answer["page"]["returned"] < 500
    assert answer["page"]["next_offset"] == answer["page"]["returned"]


@pytest.mark.parametrize(
    ("tool", "arguments", "words", "code"),
    [
        ("report", {"capture": "a", "chip": None}, "None is not of type", 2),
        ("report", {}, "capture: is missing", 2),
        ("report", {"capture": "a", "sektion": "x"}, "Did you mean section?", 2),
        ("report", {"capture": "a", "section": "x"}, "summary", 2),
        ("report", {"capture": 3}, "not of type 'string'", 2),
        ("report", {"capture": "nowhere"}, "does not exist", 3),
        ("report", {"capture": "faster\0"}, "is no path", 2),
        ("findings", {"capture": "a", "rules": ["MS999"]}, "no such rule", 2),
        ("findings", {"capture": "a", "phases": ["lunch"]}, "no such phase", 4),
        ("report", {"capture": "a", "section": "phases", "layers": [99]}, "no such layer", 4),
        ("gate", {"a": "a", "b": "b", "forbid": ["MS999"]}, "no such rule", 2),
        ("findings", {"capture": "a", "limit": 0}, "minimum of 1", 2),
        ("show", {"capture": "a", "grep": "("}, "no regular expression", 2),
        ("show", {"capture": "a", "loop": "99"}, "loop", 2),
        ("what_if", {"capture": "a", "changes": {"hbm.width": 2}}, "no such parameter", 2),
        ("what_if", {"capture": "a", "without": ["lunch"]}, "no such phase", 2),
        ("gate", {"a": "a", "b": "b", "max_regression": "much"}, "max_regression", 2),
        ("compile", {"target": "kernel.py", "output": "c"}, "names no function", 2),
        ("compile", {"target": "kernel.py:build", "output": "c"}, "is not a file", 3),
        ("compile", {"target": "mlp", "output": "."}, "root itself", 2),
        ("compile", {"target": "mlp", "output": "c", "topology": "0x0"}, "not a slice shape", 2),
        ("frobnicate", {}, "no such tool", 2),
    ],
)
def test_errors_are_tool_errors_with_the_cure(caller, tool, arguments, words, code):
    text, error = caller.error(tool, **arguments)
    assert words in text
    assert error["exit_code"] == code
    assert error["cure"]
    assert "\n" not in text


def test_nothing_outside_the_root(caller, root, tmp_path):
    (tmp_path / "kernel.py").write_text("raise SystemExit('ran')\n")
    os.symlink(tmp_path, root / "link")
    os.symlink(root.parent, root / "up")
    try:
        for given in ("..", str(tmp_path), "link", "up", "a/../../x", "~"):
            text, error = caller.error("report", capture=given)
            assert error["exit_code"] in (2, 3)
            assert "outside" in text or given == "~"
        for arguments in (
            {"target": f"{tmp_path}/kernel.py:build", "output": "c"},
            {"target": "link/kernel.py:build", "output": "c"},
            {"target": "mlp", "output": "../c"},
            {"target": "mlp", "output": "link/c"},
        ):
            assert "outside" in caller.error("compile", **arguments)[0]
        assert "outside" in caller.error("diff", a="a", b=str(tmp_path))[0]
    finally:
        os.unlink(root / "link")
        os.unlink(root / "up")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["kernel.py"]


def test_a_capture_whose_files_are_elsewhere_is_refused(caller, root, tmp_path):
    (root / "hollow").mkdir()
    (root / "hollow" / "x-final_bundles.txt").symlink_to(next((root / "a").glob("*-final_bundles.txt")))
    assert not caller.result("show", capture="hollow").is_error
    elsewhere = tmp_path / "y-02-final_bundles.txt"
    elsewhere.write_bytes(next((root / "a").glob("*-final_bundles.txt")).read_bytes())
    (root / "hollow" / "x-final_bundles.txt").unlink()
    (root / "hollow" / "x-final_bundles.txt").symlink_to(elsewhere)
    assert "outside" in caller.error("show", capture="hollow")[0]
