"""`megascope show`: the data, the text, and the command."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

sys.path.append(str(Path(__file__).parent / "llo"))

from llo_helpers import GOLDENS, listing

from analyzer import show_cli
from analyzer.errors import DATA_ABSENT, INPUT, USAGE, DataAbsentError, InputError, MegascopeError, UsageError
from analyzer.llo.occupancy import COLUMNS
from analyzer.llo.reader import parse_program, read_program
from analyzer.llo.utilization import read_utilization, utilization_file
from analyzer.show import Query, render_text, show, without_locations
from analyzer.show_facts import facts_listing, render_facts

FILE = next((GOLDENS / "tpu7x").glob("*call.1-*-final_bundles.txt"))
HERE = Path("/nonexistent/1796000000000000000-k.1-04-final_bundles.txt")


@pytest.fixture(scope="module")
def program():
    return read_program(FILE)


def addresses(program, **conditions):
    return [b["address"] for b in show(program, Query(limit=0, **conditions))["bundles"]]


def test_contract_names_and_types(program):
    executed = np.arange(program.bundle_count)
    data = show(program, Query(limit=5, offset=3), executed)
    assert json.loads(json.dumps(data)) == data
    assert (data["total"], data["returned"], data["offset"]) == (program.bundle_count, 5, 3)
    for number, bundle in enumerate(data["bundles"], start=3):
        assert bundle["address"] == number
        assert set(bundle["units"]) == set(COLUMNS)
        assert bundle["executed"] == number
        assert isinstance(bundle["phase"], str)
        assert all(isinstance(text, str) and "loc(" not in text for text in bundle["instructions"])
        assert all(":" in place for place in bundle["source"])


def test_units_are_those_of_the_compilers_file(program):
    theirs = read_utilization(utilization_file(FILE))
    for bundle in show(program, Query(limit=0))["bundles"]:
        assert list(bundle["units"].values()) == theirs.rows[bundle["address"]].tolist()


def test_unknown_counts_are_null_not_zero(program):
    data = show(program, Query(limit=2))
    assert [b["executed"] for b in data["bundles"]] == [None, None]
    assert all(loop["iterations"] is None for loop in data["loops"])
    assert "x?" in render_text(data)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0x10:0x13", [16, 17, 18]), ("5", [5]), (":2", [0, 1]), ("0x10:17", [16])],
)
def test_ranges(program, text, expected):
    assert addresses(program, bundles=text) == expected


@pytest.mark.parametrize("text", ["", "x", "1:2:3", "-1:4", "0x", ":"])
def test_malformed_ranges(program, text):
    with pytest.raises(UsageError):
        show(program, Query(bundles=text))


def test_loops_by_number_and_address(program):
    loop = program.loops[0]
    expected = list(range(loop.start, loop.end + 1))
    assert addresses(program, loop="0") == addresses(program, loop=hex(loop.start)) == expected
    with pytest.raises(UsageError, match="no such loop"):
        show(program, Query(loop="77"))
    assert show(program, Query())["loops"][0]["trip_count"] == 64


def test_opcodes_by_name_family_and_pattern(program):
    waits = addresses(program, opcode="dma.done.wait")
    assert waits
    assert set(waits) < set(addresses(program, opcode="dma.*"))
    assert addresses(program, opcode="dma") == addresses(program, opcode="dma.*")


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ({"opcode": "vquux"}, "no instruction of the program has it. Families: "),
        ({"opcode": "dma.done.wiat"}, "Near it: dma.done.wait"),
        ({"bundles": "0x10:0x5"}, "Give 0x5:0x10."),
        ({"bundles": "9:9"}, "One bundle is 0x9."),
        ({"bundles": "0xfffff"}, "the program has no bundle there. It has 0x0 to 0x"),
        ({"bundles": "99999:"}, "no bundle there"),
    ],
)
def test_what_is_not_there_is_refused(program, condition, said):
    with pytest.raises(InputError, match=re.escape(said)) as refused:
        addresses(program, **condition)
    assert refused.value.exit_code == 3


def test_sources_by_file_line_and_range(program):
    everything = addresses(program, source="dump_kernels.py")
    assert everything
    assert addresses(program, source="tests/analyzer/llo/dump_kernels.py") == everything
    line = program.sources[0].line
    some = addresses(program, source=f"dump_kernels.py:{line}")
    assert some
    assert set(some) <= set(everything)
    assert addresses(program, source=f"dump_kernels.py:{line}-{line + 500}") != []
    assert addresses(program, source="dump_kernels.py:999999") == []
    with pytest.raises(DataAbsentError, match=r"Files: dump_kernels\.py"):
        show(program, Query(source="kernels.py"))
    with pytest.raises(DataAbsentError, match="no source lines"):
        show(parse_program(listing("{ %1 = vtrace 1 }"), HERE), Query(source="k.py"))


def test_later_locations_of_a_chain_are_found_too():
    program = parse_program(
        listing('{ %s1_s0 = smov 1 /* loc("a.py":9:1) :: loc("b.py":3:1) */ }', "{}"), HERE
    )
    assert addresses(program, source="b.py:3") == [0]


def test_grep_and_combinations(program):
    found = addresses(program, grep=r"dma\.hbm_to_vmem|vsyncadd")
    assert found
    inside = addresses(program, grep="vsyncadd", loop="0")
    assert set(inside) == set(addresses(program, grep="vsyncadd")) & set(addresses(program, loop="0"))
    with pytest.raises(UsageError, match="regular expression"):
        show(program, Query(grep="("))


def test_pages_tile_the_listing(program):
    whole = addresses(program)
    pages = [
        b["address"] for at in range(0, 200, 30) for b in show(program, Query(limit=30, offset=at))["bundles"]
    ]
    assert pages == whole[:210]
    assert show(program, Query(offset=10**6))["returned"] == 0
    with pytest.raises(UsageError):
        show(program, Query(offset=-1))


def test_instruction_text_without_locations():
    assert without_locations('%1 = sbr.rel (!%p2_p0) /* loc("k.py":3:1 to :9) */ target = $region17') == (
        "%1 = sbr.rel (!%p2_p0) target = $region17"
    )
    assert without_locations(
        '%s1_s0 = sphi %s2_s0, 1 /* phi copy :: loc("k.py":3:1) :: loc("k.py":4:2) */'
    ) == ("%s1_s0 = sphi %s2_s0, 1 /* phi copy */")
    assert (
        without_locations("%7 = vsyncpa [#allocation4], 0 /* loc(unknown) */")
        == "%7 = vsyncpa [#allocation4], 0"
    )


def test_phases_of_the_golden(program):
    phases = {b["phase"] for b in show(program, Query(limit=0))["bundles"]}
    assert phases == {"", "fetch", "accumulate"}


def test_facts_listings(program):
    executed = np.ones(program.bundle_count, np.int64)
    for group in ("program", "loop", "phase", "source"):
        data = facts_listing(program, group, executed, limit=3)
        assert json.loads(json.dumps(data)) == data
        assert data["returned"] == len(data["facts"]) <= 3
        assert str(data["facts"][0]["bundles"]) in render_facts(data)
    with pytest.raises(UsageError):
        facts_listing(program, "line", executed)


@pytest.fixture
def run():
    app = typer.Typer()
    show_cli.register(app)
    app.callback()(lambda: None)
    return lambda *arguments: CliRunner().invoke(app, ["show", *map(str, arguments)])


def test_command_on_a_bare_folder_as_text_and_json(run):
    text = run(GOLDENS / "tpu7x", "--bundles", "0x10:0x13", "--no-counts")
    assert text.exit_code == 0, text.output
    assert "0..3 of 3 matching bundles" in text.stdout
    data = json.loads(run(GOLDENS / "tpu7x", "--limit", 4, "--format", "json", "--no-counts").stdout)
    assert (data["program"], data["returned"], data["capture"]) == ("call.1", 4, str(GOLDENS / "tpu7x"))


def test_command_on_a_file_counts_executions_or_says_why_not(run):
    data = json.loads(run(FILE, "--limit", 1, "--format", "json").stdout)
    counts = [bundle["executed"] for bundle in data["bundles"]]
    assert counts != [None] or any("executed" in note or "execute" in note for note in data["notes"])


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([GOLDENS / "tpu7x", "--bundles", "what"], USAGE),
        ([GOLDENS / "tpu7x", "--format", "xml"], USAGE),
        ([GOLDENS / "tpu7x", "--facts", "what", "--no-counts"], USAGE),
        ([GOLDENS / "tpu7x", "--source", "none.py", "--no-counts"], DATA_ABSENT),
        (["/nonexistent/folder"], INPUT),
    ],
)
def test_faults_have_exit_codes(run, arguments, code):
    result = run(*arguments)
    assert isinstance(result.exception, MegascopeError)
    assert result.exception.exit_code == code
