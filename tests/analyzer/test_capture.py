"""Opening captures, bare dumps and bare files; choosing the kernel; what is said when something is wrong."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.capture import open_capture
from analyzer.dump import bundle_count, find_programs
from analyzer.errors import DataAbsentError, InputError, MegascopeError, UsageError
from analyzer.manifest import SCHEMA_VERSION, read_manifest

SHARED = Path(__file__).parents[2] / "../shared/data"
KEY = "= control target key start\nLH: loop header\nCT: control target\n= control target key end\n\n"
STAMP = 1796057791808850784


def bundles(count: int, extra: str = "") -> str:
    """A program of `count` bundles; `extra` goes into the first."""
    lines = [f"     0   :  {{ %1 = vtrace 2818572288 {extra}}} /* Start region 0 */"]
    lines += [f"{hex(i):>6}   :  {{ %s{i}_s0 = smov {i} }}" for i in range(1, count)]
    return KEY + "\n".join(lines) + "\n"


def operand(index: int, shape: str, kind: str = "input", space: str = "hbm") -> str:
    return (
        f";; %s{index}_s{index} = inlined_call_operand.{space} "
        f"[shape: {shape}, index: {index}, kind: {kind}, shape index: {{}}] /* operand {index} */ "
    )


def hlo(kernels: dict[str, list[str]], module: str = "jit_step", partitions: int | None = 8) -> str:
    """HLO text of a module whose kernels take the parameters named."""
    cores = f", num_partitions={partitions}" if partitions else ""
    parameters = list(dict.fromkeys(p for names in kernels.values() for p in names))
    lines = [f"HloModule {module}, is_scheduled=true{cores}", "", "ENTRY %main () -> f32[8] {"]
    lines += [
        f'  %{p}.9 = f32[8]{{0}} parameter({i}), metadata={{op_name="{p}"}}' for i, p in enumerate(parameters)
    ]
    lines += [
        f"  %{name} = f32[8]{{0}} custom-call({', '.join(f'%{p}.9' for p in names)}), "
        'custom_call_target="tpu_custom_call", backend_config={}'
        for name, names in kernels.items()
    ]
    return "\n".join([*lines, "}"]) + "\n"


def write_dump(folder: Path, programs: dict[str, str], module: str | None = None, stamp: int = STAMP) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in programs.items():
        (folder / f"{stamp}-{name}-04-final_bundles.txt").write_text(text)
        (folder / f"{stamp}-{name}-03-schedule-analysis_final_bundles.txt").write_text("Schedule analysis:\n")
    if module is not None:
        (folder / f"{stamp}-TLP-hlo.txt").write_text(module)
    return folder


def write_capture(path: Path, **changes: object) -> Path:
    write_dump(path / "dump", {"mlp.1": bundles(9), "TLP": bundles(30)}, hlo({"mlp.1": ["x"]}))
    files = {
        p.relative_to(path).as_posix(): {
            "sha256": hashlib.sha256(p.read_bytes()).hexdigest(),
            "bytes": p.stat().st_size,
        }
        for p in path.rglob("*")
        if p.is_file()
    }
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "kind": "compile",
        "kernel": "mlp",
        "program": "mlp.1",
        "chip": "tpu7x",
        "files": files,
    }
    (path / "manifest.json").write_text(json.dumps(manifest | changes))
    return path


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    return cache


class TestChoice:
    def test_custom_call_before_larger_programs(self, tmp_path: Path) -> None:
        write_dump(
            tmp_path,
            {
                "mlp.1": bundles(9),
                "fusion.2": bundles(50),
                "TLP": bundles(90),
                "<late-initialization>": bundles(5),
            },
            hlo({"mlp.1": ["x"]}),
        )
        capture = open_capture(tmp_path)
        assert capture.kind == "dump"
        assert capture.kernel_program().name == "mlp.1"
        assert not [n for n in capture.notes if "took" in n]

    def test_largest_of_several_kernels_and_it_is_said(self, tmp_path: Path) -> None:
        write_dump(
            tmp_path,
            {"a.1": bundles(9), "b.1": bundles(20), "c.1": bundles(12)},
            hlo({n: ["x"] for n in ("a.1", "b.1", "c.1")}),
        )
        capture = open_capture(tmp_path)
        assert capture.kernel_program().name == "b.1"
        assert "took b.1 (20 bundles), the largest; the others: c.1 (12), a.1 (9)" in capture.notes

    def test_equal_size_goes_by_name(self, tmp_path: Path) -> None:
        write_dump(tmp_path, {"b.1": bundles(9), "a.1": bundles(9)}, hlo({"a.1": ["x"], "b.1": ["x"]}))
        assert open_capture(tmp_path).kernel_program().name == "a.1"

    def test_identical_recompiles_are_one_program(self, tmp_path: Path) -> None:
        for n in range(13):
            write_dump(tmp_path, {"mlp.1": bundles(9)}, hlo({"mlp.1": ["x"]}), STAMP + n)
        capture = open_capture(tmp_path)
        assert [p.name for p in capture.programs()] == ["mlp.1"]
        assert len(capture.kernel_program().identical) == 12
        assert capture.kernel_program().stem == str(STAMP + 12)
        assert "13 identical programs mlp.1: compiled again without a change" in capture.notes

    def test_newest_of_different_compiles_even_if_smaller(self, tmp_path: Path) -> None:
        write_dump(tmp_path, {"mlp.1": bundles(40)}, hlo({"mlp.1": ["x"]}))
        write_dump(tmp_path, {"mlp.1": bundles(30)}, hlo({"mlp.1": ["x"]}), STAMP + 5)
        capture = open_capture(tmp_path)
        assert capture.kernel_program().bundle_count == 30
        assert any("2 different compiles of mlp.1" in n and str(STAMP + 5) in n for n in capture.notes)

    def test_same_name_in_two_modules_is_two_kernels(self, tmp_path: Path) -> None:
        write_dump(tmp_path, {"k.1": bundles(40)}, hlo({"k.1": ["x"]}, "jit_prefill"))
        write_dump(tmp_path, {"k.1": bundles(30)}, hlo({"k.1": ["x"]}, "jit_decode"), STAMP + 5)
        capture = open_capture(tmp_path)
        assert (capture.kernel_program().bundle_count, capture.kernel_program().module) == (40, "jit_prefill")
        assert any("the largest; the others: k.1 (30)" in n for n in capture.notes)

    def test_without_hlo_the_doubt_is_stated(self, tmp_path: Path) -> None:
        write_dump(tmp_path, {"mlp.1": bundles(20), "copy.7": bundles(9), "TLP": bundles(90)})
        capture = open_capture(tmp_path)
        assert capture.kernel_program().name == "mlp.1"
        assert any("not known which is the kernel" in n for n in capture.notes)

    def test_no_kernel_in_the_hlo_is_stated(self, tmp_path: Path) -> None:
        write_dump(tmp_path, {"fusion.1": bundles(20), "TLP": bundles(90)}, hlo({}))
        capture = open_capture(tmp_path)
        assert capture.kernel_program().name == "fusion.1"
        assert any("no Pallas kernel" in n for n in capture.notes)

    def test_by_name(self, tmp_path: Path) -> None:
        write_dump(tmp_path, {"a.1": bundles(9), "b.1": bundles(20)}, hlo({"a.1": ["x"], "b.1": ["x"]}))
        assert open_capture(tmp_path, program="a.1").kernel_program().name == "a.1"
        assert open_capture(tmp_path, program="a").kernel_program().name == "a.1"
        with pytest.raises(UsageError, match=r"c\.1.*There are: a\.1, b\.1"):
            open_capture(tmp_path, program="c.1")

    def test_program_names_with_dashes_and_brackets(self, tmp_path: Path) -> None:
        write_dump(tmp_path, {"copy": bundles(5), "copy-12": bundles(9), "a<b>.c-03-d.1": bundles(20)})
        by_name = {p.name: p for p in find_programs(tmp_path)}
        assert sorted(by_name) == ["a<b>.c-03-d.1", "copy", "copy-12"]
        for name, program in by_name.items():
            assert program.companions["schedule-analysis_final_bundles"].name.startswith(f"{STAMP}-{name}-03")

    def test_bundle_count_reads_the_end(self, tmp_path: Path) -> None:
        path = tmp_path / "x-final_bundles.txt"
        for count in (1, 2, 17, 9000):
            path.write_text(bundles(count))
            assert bundle_count(path) == count
        path.write_text(bundles(17) + "  /* " + "x" * 300_000 + " */\n")
        assert bundle_count(path) == 17


class TestInferred:
    def test_operands_names_and_cores(self, tmp_path: Path) -> None:
        text = bundles(
            9,
            operand(0, "bf16[92,16]") + operand(1, "f99[3]", space="vmem") + operand(2, "s4[3]", "output"),
        )
        write_dump(tmp_path, {"mlp.1": text}, hlo({"mlp.1": ["w", "scale"]}))
        manifest = open_capture(tmp_path).manifest
        assert manifest["cores"] == 8
        assert manifest["kernel"] == "mlp"
        rows = [
            {k: o[k] for k in ("name", "shape", "dtype", "bytes", "space", "kind")}
            for o in manifest["operands"]
        ]
        assert rows == [
            {
                "name": "w",
                "shape": [92, 16],
                "dtype": "bf16",
                "bytes": 2944,
                "space": "hbm",
                "kind": "input",
            },
            {"name": "scale", "shape": [3], "dtype": "f99", "bytes": None, "space": "vmem", "kind": "input"},
            {"name": None, "shape": [3], "dtype": "s4", "bytes": 2, "space": "hbm", "kind": "output"},
        ]

    def test_unknown_is_listed_and_null(self, tmp_path: Path) -> None:
        write_dump(tmp_path, {"mlp.1": bundles(9)})
        capture = open_capture(tmp_path)
        assert capture.manifest["chip"] is None
        assert capture.manifest["cores"] is None
        assert {"chip", "batch", "cores", "topology"} <= set(capture.manifest["unknown"])
        assert any(n.startswith("chip unknown") for n in capture.notes)

    @pytest.mark.parametrize(
        ("slots", "vmem", "opcode", "chip"),
        [
            ("2 2 4 2 1 3 3 2 2 2", 64, "", "tpu7x"),
            ("2 2 4 2 1 3 3 2 2 2", 128, "", "v6e"),
            ("4 3 4 2 1 3 3 1 1 2", 64, "", "v5p"),
            ("4 3 4 2 1 3 3 1 1 2", 128, "", "v5e"),
            ("2 2 4 2 1 3 3 2 2 2", None, "", None),
            ("9 9 9 9 9 9 9 9 9 9", 64, "", None),
            (None, None, ";; %2 = vmatmul.mubr.bf16.gmra.mrb[0].mxu0 %v1_v1 ", "tpu7x"),
            (
                "2 2 4 2 1 3 3 2 2 2",
                None,
                ";; %2 = vmatprep.mubr.f32.mxu0 %v1 ;; %3 = vmatmul.mubr.f32.gmra.mxu0 ",
                "v6e",
            ),
        ],
    )
    def test_chip(
        self, tmp_path: Path, slots: str | None, vmem: int | None, opcode: str, chip: str | None
    ) -> None:
        write_dump(tmp_path, {"mlp.1": bundles(9, opcode)}, hlo({"mlp.1": ["x"]}))
        if slots:
            (tmp_path / f"{STAMP}-mlp.1-02-final_hlo-static-per-bundle-utilization.txt").write_text(
                f"== CAPACTIY:\nMXU, XLU\n    {slots}\n"
            )
        if vmem:
            (tmp_path / f"{STAMP}-TLP-06-vmem_report.html").write_text(f'{{"vmem_capacity": {vmem << 20}}}')
        assert open_capture(tmp_path).manifest["chip"] == chip

    def test_a_cut_file_is_called_cut_before_anyone_asks_for_its_chip(self, tmp_path: Path) -> None:
        write_dump(tmp_path, {"mlp.1": bundles(9)[:-8]})
        with pytest.raises(InputError, match="truncated inside bundle 0x8"):
            open_capture(tmp_path)

    def test_a_file_cut_between_bundles_is_missed_by_its_utilization_table(self, tmp_path: Path) -> None:
        write_dump(tmp_path, {"mlp.1": bundles(9)}, hlo({"mlp.1": ["x"]}))
        table = tmp_path / f"{STAMP}-mlp.1-02-final_hlo-static-per-bundle-utilization.txt"
        head = "== CAPACTIY:\nMXU\n    2\n== UTILIZATION:\n"
        table.write_text(head + "0\n" * 9)
        assert not [n for n in open_capture(tmp_path).notes if "utilization" in n]
        table.write_text(head + "0\n" * 12)
        with pytest.raises(InputError, match=r"is truncated: 9 bundles, and the utilization table .* has 12"):
            open_capture(tmp_path)
        table.write_text(head + "0\n" * 8)
        assert "the utilization table of mlp.1 has 8 rows for 9 bundles" in open_capture(tmp_path).notes

    def test_chip_given_by_the_user_wins(self, tmp_path: Path) -> None:
        write_dump(tmp_path / "bare", {"mlp.1": bundles(9)})
        assert open_capture(tmp_path / "bare", chip="v5e").manifest["chip"] == "v5e"
        capture = open_capture(write_capture(tmp_path / "capture"), chip="v5e")
        assert capture.manifest["chip"] == "v5e"
        assert "chip v5e as asked; the manifest says tpu7x" in capture.notes

    def test_a_chip_that_the_files_contradict_is_said(self, tmp_path: Path) -> None:
        capture = write_capture(tmp_path / "capture")
        file = capture / f"dump/{STAMP}-mlp.1-04-final_bundles.txt"
        file.write_text(bundles(9, ";; %v1 = vmatmul.mubr.bf16.gmra.mrb[0].mxu0 %v0"))
        assert not [n for n in open_capture(capture).notes if "taken as" in n]
        notes = open_capture(capture, chip="v6e").notes
        assert [n for n in notes if n.startswith("taken as v6e, but the dump is of tpu7x")]

    def test_bare_file(self, tmp_path: Path) -> None:
        write_dump(tmp_path, {"mlp.1": bundles(9), "big.1": bundles(90)}, hlo({"mlp.1": ["x"]}))
        capture = open_capture(tmp_path / f"{STAMP}-mlp.1-04-final_bundles.txt")
        assert capture.kernel_program().name == "mlp.1"
        assert capture.manifest["cores"] == 8

    def test_renamed_bare_file(self, tmp_path: Path) -> None:
        path = tmp_path / "my kernel.txt"
        path.write_text(bundles(9))
        assert open_capture(path).kernel_program().name == "my kernel"

    def test_dump_one_level_down_is_found_and_said(self, tmp_path: Path) -> None:
        write_dump(tmp_path / "dump", {"mlp.1": bundles(9)})
        assert any("read the dump in dump/" in n for n in open_capture(tmp_path).notes)
        write_dump(tmp_path / "dump2", {"mlp.1": bundles(9)})
        with pytest.raises(InputError, match=r"holds 2 dumps \(dump, dump2\)\. Point at one of them"):
            open_capture(tmp_path)


class TestNothingThere:
    def test_each_has_its_own_line(self, tmp_path: Path) -> None:
        empty, posing, named, other = (tmp_path / n for n in ("empty", "posing", "named", "other"))
        for folder in (empty, posing, named, other):
            folder.mkdir()
        (posing / f"{STAMP}-mlp.1-03-schedule-analysis_final_bundles.txt").write_text("Schedule analysis:\n")
        (named / f"{STAMP}-mlp.1-03-final_bundles.txt").write_text("Schedule analysis:\n\ttotal: 3\n")
        (other / "readme.txt").write_text("hello")
        for path, said in {
            tmp_path / "nowhere": "does not exist",
            empty: "empty folder",
            posing: "is a schedule analysis (counts of bundles, not bundles)",
            named: "is a schedule analysis (counts of bundles, not bundles)",
            other: "holds no final bundles (1 other entries)",
        }.items():
            with pytest.raises(InputError) as caught:
                open_capture(path)
            assert said in str(caught.value)
            assert str(path) in str(caught.value)
            assert "\n" not in str(caught.value)
            assert caught.value.exit_code == 3

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("", "an empty file"),
            ("Schedule analysis:\n", "a schedule analysis"),
            ("== CAPACTIY:\nMXU\n", "utilization"),
            ("version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
            ("HloModule jit_f\n", "HLO text"),
            ("<!DOCTYPE html>\n", "HTML"),
            ("module {\n  llo.add\n}", "MLIR"),
            ("$region0: #{mlp}\n  v1 = vld\n", "LLO before bundling"),
            ("a\0b", "a binary file"),
            ("hello", "nothing else that is known"),
        ],
    )
    def test_file_that_is_something_else(self, tmp_path: Path, text: str, said: str) -> None:
        path = tmp_path / f"{STAMP}-mlp.1-04-final_bundles.txt"
        path.write_text(text)
        with pytest.raises(InputError, match=said):
            open_capture(path)


class TestManifest:
    def test_capture(self, tmp_path: Path) -> None:
        capture = open_capture(write_capture(tmp_path / "c", notes=["one"]))
        assert (capture.kind, capture.kernel_program().name, capture.notes) == ("compile", "mlp.1", ["one"])
        assert capture.cache_dir == tmp_path / "c" / ".cache"
        assert open_capture(tmp_path / "c" / "manifest.json").path == tmp_path / "c"

    def test_changed_and_missing_files_are_said(self, tmp_path: Path) -> None:
        path = write_capture(tmp_path / "c")
        bundle = path / "dump" / f"{STAMP}-mlp.1-04-final_bundles.txt"
        bundle.write_text(bundle.read_text().replace("smov 3", "smov 4"))
        (path / "dump" / f"{STAMP}-TLP-04-final_bundles.txt").unlink()
        notes = open_capture(path).notes
        assert any(
            n.startswith("changed since the capture was written: dump/") and "mlp.1" in n for n in notes
        )
        assert any(n.startswith("missing from the capture: dump/") and "TLP" in n for n in notes)

    def test_kernel_gone_is_not_replaced_by_the_runtimes_program(self, tmp_path: Path) -> None:
        capture = write_capture(tmp_path)
        (capture / f"dump/{STAMP}-mlp.1-04-final_bundles.txt").write_bytes(bytes(range(256)) * 9)
        with pytest.raises(InputError, match=r"no bundles of mlp\.1, which the manifest names.*\(TLP\)"):
            open_capture(capture)
        assert open_capture(capture, program="TLP").kernel_program().name == "TLP"

    def test_dump_gone(self, tmp_path: Path) -> None:
        path = write_capture(tmp_path / "c")
        for file in (path / "dump").iterdir():
            file.unlink()
        with pytest.raises(InputError, match="empty folder"):
            open_capture(path)
        (path / "dump").rmdir()
        with pytest.raises(InputError, match="no dump folder"):
            open_capture(path)

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("", "is damaged, not JSON"),
            ('{"schema_version": 1', "is damaged, not JSON"),
            ("[" * 100_000, "is damaged, not JSON"),
            ("\udcff", "is damaged, not JSON"),
            ("[]", "is not a manifest"),
            ('{"kind": "compile"}', "no schema_version"),
            ('{"schema_version": 99, "kind": "compile"}', "schema version 99"),
            ('{"schema_version": 1, "kind": "magic"}', "unknown kind 'magic'"),
            ('{"schema_version": 1, "kind": "compile", "operands": 3}', "operands is a int"),
            ('{"schema_version": 1, "kind": "compile", "sources": [3]}', "an entry is a int"),
        ],
    )
    def test_damaged(self, tmp_path: Path, text: str, said: str) -> None:
        path = write_capture(tmp_path / "c")
        (path / "manifest.json").write_bytes(text.encode(errors="surrogateescape"))
        with pytest.raises(InputError, match=said) as caught:
            open_capture(path)
        assert "Update megascope" in str(caught.value) or "Compile again" in str(caught.value)

    @pytest.mark.parametrize(
        ("name", "value", "said"),
        [
            ("cores", 10**9, "cores is 1000000000, which cannot be: unknown"),
            ("cores", -3, "cores is -3, which"),
            ("cores", "8", "cores is '8', which"),
            ("cores", True, "cores is True, which"),
            ("cores", 64, "cores is 64, more than tpu7x:2x2x1 has: unknown"),
            ("batch", 0, "batch is 0, which"),
            ("batch", 1.5, "batch is 1.5, which"),
            ("kernel", ["mlp"], "kernel is ['mlp'], which"),
            ("model", "x" * 10_000, "..., which cannot be"),
            ("probe_level", "a\x1b[2Jb", "probe_level is 'a\\x1b[2Jb', which"),
        ],
    )
    def test_facts_that_cannot_be_are_unknown_and_said(
        self, tmp_path: Path, name: str, value: object, said: str
    ) -> None:
        path = write_capture(tmp_path / "c", **{"topology": "tpu7x:2x2x1", name: value})
        capture = open_capture(path)
        assert capture.manifest[name] is None
        assert [note for note in capture.notes if said in note]
        sound = open_capture(write_capture(tmp_path / "sound", topology="tpu7x:2x2x1", cores=8, batch=8))
        assert (sound.manifest["cores"], sound.manifest["batch"]) == (8, 8)
        assert not [note for note in sound.notes if "cannot be" in note]

    @pytest.mark.parametrize(
        "name", ["../outside", "/etc/passwd", "dump/../../outside", "a\0b", "link/secret"]
    )
    def test_hostile_paths_are_refused(self, tmp_path: Path, name: str) -> None:
        (tmp_path / "outside").write_text("secret")
        path = write_capture(tmp_path / "c")
        (path / "link").symlink_to(tmp_path)
        for changes in ({"files": {name: {}}}, {"sources": [{"path": "x.py", "file": name}]}):
            write_capture(path, **changes)
            with pytest.raises(InputError, match="outside the capture"):
                open_capture(path)

    def test_source_file_is_the_stored_copy(self, tmp_path: Path) -> None:
        original = tmp_path / "k.py"
        original.write_text("new")
        path = write_capture(tmp_path / "c", sources=[{"path": str(original), "file": "source/00-k.py"}])
        (path / "source").mkdir()
        (path / "source" / "00-k.py").write_text("old")
        capture = open_capture(path)
        stored = capture.source_file(str(original))
        assert stored is not None
        assert stored.read_text() == "old"
        assert capture.source_file(str(tmp_path / "nowhere.py")) is None

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=5),
            lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=5), x, max_size=3),
            max_leaves=6,
        ),
        st.sampled_from(["files", "operands", "sources", "facts", "notes", "chip", "program", "cores"]),
    )
    def test_any_value_in_a_field_is_read_or_refused(
        self, tmp_path_factory: pytest.TempPathFactory, value: object, field: str
    ) -> None:
        path = write_capture(tmp_path_factory.mktemp("c"), **{field: value})
        try:
            manifest = read_manifest(path)
            open_capture(path)
        except MegascopeError:
            return
        assert isinstance(manifest["operands"], list)


class TestCache:
    def test_bare_dump_uses_the_users_cache(self, tmp_path: Path, own_cache: Path) -> None:
        write_dump(tmp_path, {"mlp.1": bundles(9)})
        before = sorted(tmp_path.rglob("*"))
        folder = open_capture(tmp_path).cache_dir
        assert folder.is_relative_to(own_cache)
        assert sorted(tmp_path.rglob("*")) == before

    def test_capture_that_cannot_be_written_to(self, tmp_path: Path, own_cache: Path) -> None:
        path = write_capture(tmp_path / "c")
        (path / ".cache").write_text("in the way")
        assert open_capture(path).cache_dir.is_relative_to(own_cache)


def test_opening_needs_neither_jax_nor_pandas() -> None:
    code = "import analyzer.capture, sys; print([m for m in ('jax', 'pandas', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.skipif(not SHARED.is_dir(), reason="no ../shared/data beside the project")
class TestRealFiles:
    def test_dump_of_another_compiler(self) -> None:
        capture = open_capture(SHARED / "v6e-matmul" / "dump")
        program = capture.kernel_program()
        assert (program.name, program.bundle_count) == ("matmul_optimized.1", 2705)
        assert capture.manifest["chip"] == "v6e"

    def test_traces_are_told_apart_from_what_only_bears_their_name(self) -> None:
        capture = open_capture(SHARED / "v6e-hostoffload")
        assert (capture.kind, capture.trace, capture.programs()) == ("xplane", capture.path, [])
        with pytest.raises(DataAbsentError, match="is a profiler trace and holds no bundles"):
            capture.kernel_program()
        both = open_capture(SHARED / "v6e-matmul")
        assert both.kernel_program().bundle_count == 2705
        assert open_capture(SHARED / "v6e-matmul", program="matmul_optimized.1").trace is None

    def test_old_formats(self) -> None:
        for path in sorted((SHARED / "old-formats").iterdir()):
            program = open_capture(path).kernel_program()
            assert program.bundle_count > 10
        names = sorted(p.name for p in find_programs(SHARED / "old-formats"))
        assert names == ["fusion", "matmul", "matmul", "matmul_bf16", "matmul_bf16_rhs_transpose", "unnamed"]
