"""Real compiles for TPUs that are not there: the capture they give, and every way they can fail."""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from analyzer.capture import open_capture
from analyzer.errors import InputError, MegascopeError, UsageError
from profiler.compile import CompileRequest, compile_kernel
from profiler.topology import parse_topology

pytestmark = pytest.mark.skipif(
    __import__("importlib.util").util.find_spec("libtpu") is None, reason="libtpu is not installed"
)
PROJECT = Path(__file__).parents[2]
OK = "def build(): return double, (X,), {}"
UserFile = Callable[..., str]


def request(target: str, topology: str | None = None, **changes: object) -> CompileRequest:
    return CompileRequest(target=target, topology=parse_topology(topology), timeout_seconds=120, **changes)  # type: ignore[arg-type]


def refusal(wanted: CompileRequest, out: Path) -> MegascopeError:
    """The error a compile ends with; it is one line, and nothing but the log is left behind."""
    with pytest.raises(MegascopeError) as caught:
        compile_kernel(wanted, out)
    text = str(caught.value)
    assert "\n" not in text
    assert "Traceback" not in text
    log = out.with_name(out.name + ".compile.log")
    assert log.is_file() == (str(log) in text)
    assert [p.name for p in out.parent.iterdir() if p.name.startswith((out.name, f".{out.name}"))] == (
        [log.name] if log.is_file() else []
    )
    return caught.value


class TestCapture:
    def test_everything_the_manifest_promises(self, user_file: UserFile, tmp_path: Path) -> None:
        out = tmp_path / "made" / "here" / "out"
        target = user_file(
            'def build(rows=256, *, level="?"):\n    assert level == "regions"\n    '
            'return (jax.shard_map(double, in_specs=P("x"), out_specs=P("x"), check_vma=False), '
            '(Shape((rows * 8, 256), jnp.float32),), {"x": 8}, (P("x"),))'
        )
        returned = compile_kernel(request(target, options={"rows": 128}), out)
        manifest = json.loads((out / "manifest.json").read_text())
        assert manifest == returned | {"files": manifest["files"]}
        expected = {
            "schema_version": 1,
            "kind": "compile",
            "kernel": "kernel",
            "target": target,
            "program": "double.1",
            "model": None,
            "batch": None,
            "context": None,
            "scenario": None,
            "chip": "tpu7x",
            "topology": "tpu7x:2x2x1",
            "cores": 8,
            "mesh_axes": {"x": 8},
            "probe_level": "regions",
            "options": {"rows": 128},
            "git": None,
            "notes": [],
        }
        assert {k: manifest[k] for k in expected} == expected
        assert set(manifest["versions"]) >= {"python", "jax", "jaxlib", "libtpu"}
        assert None not in manifest["versions"].values()
        assert "--xla_enable_custom_call_region_trace=true" in manifest["flags"]
        assert str(tmp_path) not in " ".join(manifest["flags"])
        assert manifest["seconds"]["compile"] > 0

        x, out_operand = manifest["operands"]
        assert (x["name"], x["name_from"], x["shape"], x["global_shape"]) == (
            "x",
            "hlo",
            [128, 256],
            [1024, 256],
        )
        assert (x["dtype"], x["space"], x["kind"], x["bytes"]) == ("f32", "hbm", "input", 128 * 256 * 4)
        assert out_operand["kind"] == "output"

        on_disk = {p.relative_to(out).as_posix(): p for p in out.rglob("*") if p.is_file()}
        del on_disk["manifest.json"]
        assert {n: f["sha256"] for n, f in manifest["files"].items()} == {
            n: hashlib.sha256(p.read_bytes()).hexdigest() for n, p in on_disk.items()
        }
        assert "compile.log" in on_disk
        assert "hlo/after_optimizations.txt" in on_disk
        assert sum(n.endswith("TLP-hlo.txt") for n in on_disk) == 2
        assert "custom-call" in on_disk["hlo/after_optimizations.txt"].read_text()
        (source,) = manifest["sources"]
        assert source["in_bundles"]
        assert (out / source["file"]).read_text() == (tmp_path / "kernel.py").read_text()

        capture = open_capture(out)
        assert (capture.kind, capture.kernel_program().name, capture.notes) == ("compile", "double.1", [])
        assert "trace-markers" in capture.kernel_program().companions

    def test_an_existing_capture_is_kept_unless_forced(self, user_file: UserFile, tmp_path: Path) -> None:
        target, out = user_file(OK), tmp_path / "my captures" / "out put"
        compile_kernel(request(target, level="off"), out)
        before = (out / "manifest.json").read_bytes()
        with pytest.raises(UsageError, match=r"exists\. Give --force"):
            compile_kernel(request(target), out)
        assert (out / "manifest.json").read_bytes() == before
        assert open_capture(out).manifest["probe_level"] == "off"
        compile_kernel(request(target, topology="v6e:2x2"), out, force=True)
        assert open_capture(out).manifest["chip"] == "v6e"
        assert [p.name for p in out.parent.iterdir()] == ["out put"]

    def test_what_is_no_capture_is_never_replaced(self, tmp_path: Path) -> None:
        (tmp_path / "thesis.tex").write_text("years of work")
        with pytest.raises(UsageError, match="not a capture"):
            compile_kernel(request("mlp"), tmp_path, force=True)

    def test_inputs_placed_in_vmem_are_noted(self, user_file: UserFile, tmp_path: Path) -> None:
        code = """
def build():
    def multiply(x, w):
        def kernel(x, w, out):
            out[...] = jnp.dot(x[...], w[...])
        return pl.pallas_call(kernel, out_shape=X, name="multiply")(x, w)
    return multiply, (X, X), {}
"""
        (note,) = compile_kernel(request(user_file(code)), tmp_path / "out")["notes"]
        assert note.startswith("XLA places x, w in VMEM before the kernel starts")

    @pytest.mark.slow
    def test_region_markers_only_at_level_regions(self, user_file: UserFile, tmp_path: Path) -> None:
        for level in ("off", "regions"):
            compile_kernel(request(user_file(OK), level=level), tmp_path / level)
            text = open_capture(tmp_path / level).kernel_program().bundles.read_text()
            assert ("vtrace" in text) == (level == "regions")

    @pytest.mark.slow
    def test_the_compilation_cache_is_kept_out(
        self, user_file: UserFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cache = tmp_path / "jax cache"
        monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(cache))
        monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        target = user_file(
            f'jax.config.update("jax_enable_compilation_cache", True)\n'
            f'jax.config.update("jax_compilation_cache_dir", {str(cache)!r})\n{OK}'
        )
        compile_kernel(request(target), tmp_path / "out")
        # This JAX cannot load what it stores for a TPU that is not there; one that can would give no dump.
        assert not cache.exists() or not list(cache.iterdir())


class TestRefused:
    """The user's file, the compiler, libtpu's flags: each fault has its own line."""

    @pytest.mark.parametrize(
        ("code", "said"),
        [
            ("def make(): pass", r"no function 'build' in .*kernel.py. Functions there: double, make"),
            (
                'def build(): raise ValueError("no size 17")',
                r"build\(\) failed \(at .*kernel.py:\d+\): ValueError: no size 17",
            ),
            ("def build(): return 17", r"build\(\) returned an int. build\(\) must return a .*KernelBuild"),
            (
                'def build(): return double, (X,), {"x": 4}',
                r"need 4 cores, and topology tpu7x:2x2x1 has 8. Use --topology tpu7x:2x1x1",
            ),
            (
                "def build(): return double, (Shape((1 << 15, 1024), jnp.float32),), {}",
                r"compiler refused the kernel: RESOURCE_EXHAUSTED: .*128 MiB.*64 MiB.*vmem.*smaller tiles",
            ),
            (
                "def build(): os.kill(os.getpid(), signal.SIGKILL)",
                r"ended by SIGKILL while it was in stage 'build'. The machine most likely ran out of memory",
            ),
        ],
    )
    def test_fault(self, user_file: UserFile, tmp_path: Path, code: str, said: str) -> None:
        error = refusal(request(user_file(code)), tmp_path / "out")
        assert error.exit_code == 3
        assert pytest.raises(InputError, match=said).matches(error), error

    def test_kernel_that_pallas_cannot_lower_names_the_line(
        self, user_file: UserFile, tmp_path: Path
    ) -> None:
        target = user_file("""
def build():
    def sorted_rows(x):
        def kernel(x, out):
            out[...] = jnp.sort(x[...], axis=0)
        return pl.pallas_call(kernel, out_shape=X)(x)
    return sorted_rows, (X,), {}
""")
        line = (tmp_path / "kernel.py").read_text().splitlines().index(
            "            out[...] = jnp.sort(x[...], axis=0)"
        ) + 1  # fmt: skip
        text = str(refusal(request(target), tmp_path / "out"))
        assert f"kernel.py:{line}): NotImplementedError: Unimplemented primitive" in text
        assert "sort" in text

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("code", "said"),
        [
            ("build = 3", "is an int, not a function"),
            ("def build(): return double, (X,)", "returned a tuple of 2"),
            ("def build(): return double, (3,), {}", "an argument is of type int"),
            ('def build(): return double, (X,), {"x": "8"}', "returned mesh axes {'x': '8'}"),
            ('def build(): return "double", (X,), {}', "returned a str as the function"),
            ("def build(): return double, X, {}", "returned a ShapeDtypeStruct as the arguments"),
            ("def build(): return double, (X,), {}, (P(), P())", "2 partition specs for 1 arguments"),
            ("def build(): return double, (X, X), {}", "takes 1 positional argument but 2 were given"),
            ('def build(): return double, (X,), {"x": 3}', "Make the axes multiply to 8"),
            ("def build(rows): return double, (X,), {}", "missing a required argument: 'rows'"),
            ("import nosuchmodule", r"could not be imported \(at .*kernel.py:\d+\): ModuleNotFoundError"),
            ("def build(:", "SyntaxError: invalid syntax"),
            ("sys.exit(4)", r"the code called sys.exit\(4\)"),
            ("def build(): os.abort()", "ended by SIGABRT"),
            ("def build(): os._exit(7)", "ended with code 7 in stage 'build'"),
            (
                "def build(): return (lambda x: x + jnp.zeros((3, 3))), (X,), {}",
                r"could not be traced \(at .*kernel.py:\d+\): TypeError: add got incompatible shapes",
            ),
            (
                "def build(): return (lambda x: x * 2), (Shape((1 << 20, 1 << 18), jnp.float32),), {}",
                "RESOURCE_EXHAUSTED.*HBM.*fewer layers, or more cores",
            ),
        ],
    )
    def test_more_faults(self, user_file: UserFile, tmp_path: Path, code: str, said: str) -> None:
        error = refusal(request(user_file(code)), tmp_path / "out")
        assert pytest.raises(InputError, match=said).matches(error), error

    @pytest.mark.parametrize(
        ("target", "options", "said"),
        [
            ("nosuch", {}, "no kernel 'nosuch'. Kernels: .*mlp"),
            ("mlp", {"nosuch": 1}, "takes no option nosuch. Options of this kernel: .*layers"),
            ("mlp", {"ffn": 1000}, "ffn is 1000"),
            ("mlp", {"layers": "abc"}, "layers is 'abc'; it must be a whole number"),
            ("qwen", {"layers": True}, "layers is True; it must be a whole number"),
        ],
    )
    def test_wrong_words_on_the_command_line(
        self, tmp_path: Path, target: str, options: dict[str, object], said: str
    ) -> None:
        error = refusal(request(target, options=options), tmp_path / "out")
        assert pytest.raises(UsageError, match=said).matches(error), error

    def test_file_missing(self, tmp_path: Path) -> None:
        error = refusal(request(str(tmp_path / "none.py") + ":build"), tmp_path / "out")
        assert "there is no file" in str(error)

    def test_flag_that_libtpu_does_not_know(self, user_file: UserFile, tmp_path: Path) -> None:
        error = refusal(request(user_file(OK), extra_flags=("--xla_nosuch=1",)), tmp_path / "out")
        assert isinstance(error, UsageError)
        assert "xla_nosuch: libtpu refused it: Unknown command line flag" in str(error)

    def test_topology_that_libtpu_does_not_know(self, user_file: UserFile, tmp_path: Path) -> None:
        error = refusal(request(user_file(OK), topology="3x3x1"), tmp_path / "out")
        assert isinstance(error, UsageError)
        assert 'libtpu does not know it: INVALID_ARGUMENT: Topology layout "tpu7x:3x3x1"' in str(error)

    def test_folder_that_cannot_be_made(self, user_file: UserFile, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(InputError, match="cannot write the capture"):
            compile_kernel(request(user_file(OK)), tmp_path / "file" / "out")

    def test_timeout(self, user_file: UserFile, tmp_path: Path) -> None:
        target = user_file("def build(): time.sleep(60)")
        wanted = CompileRequest(target=target, topology=parse_topology(None), timeout_seconds=2.5)
        said = str(refusal(wanted, tmp_path / "out"))
        # On a busy machine the time can be over before build() is reached.
        assert re.search(r"no result after 2.5 s \(stage '(start|topology|load|build)'\)", said)


class TestNoDump:
    def test_flags_that_turn_the_dump_off(self, user_file: UserFile, tmp_path: Path) -> None:
        error = refusal(
            request(user_file(OK), extra_flags=("--xla_jf_dump_llo_text=false",)), tmp_path / "out"
        )
        assert "libtpu wrote no bundles, although the compile succeeded. A --flag may have" in str(error)

    def test_libtpu_already_started(
        self, user_file: UserFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "site").mkdir()
        (tmp_path / "site" / "sitecustomize.py").write_text(
            "import os\n"
            "flags = os.environ.pop('LIBTPU_INIT_ARGS', None)\n"
            "from jax.experimental import topologies\n"
            "topologies.get_topology_desc(platform='tpu', topology_name='tpu7x:2x2x1')\n"
        )
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
        error = refusal(request(user_file(OK)), tmp_path / "out")
        assert "no dump: libtpu was already started in the compile process" in str(error)


class TestCommand:
    def run(self, *arguments: str, **more: object) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, str(PROJECT / "megascope.py"), "compile", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, **more)  # type: ignore[call-overload,no-any-return]

    def test_path_on_stdout_and_nothing_of_libtpu_on_stderr(
        self, user_file: UserFile, tmp_path: Path
    ) -> None:
        out = tmp_path / "out"
        target = user_file('print("from the file")\n' + OK)
        done = self.run(target, "-o", str(out), cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, f"{out}\n")
        assert "from the file" not in done.stderr
        assert "TPU_WORKER" not in done.stderr
        log = (out / "compile.log").read_text()
        assert "from the file" in log
        assert "TPU" in log

    def test_fault_is_one_line_and_exit_code_3(self, user_file: UserFile, tmp_path: Path) -> None:
        done = self.run(user_file("def build(): return 17"), "-o", str(tmp_path / "out"))
        assert (done.returncode, done.stdout) == (3, "")
        assert "Traceback" not in done.stderr
        assert done.stderr.splitlines()[-1].startswith("megascope: ")

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_interrupted_leaves_nothing(self, user_file: UserFile, tmp_path: Path, number: int) -> None:
        marker = tmp_path / "pid"
        target = user_file(
            f"def build():\n    open({str(marker)!r}, 'w').write(str(os.getpid()))\n    time.sleep(60)"
        )
        command = [
            sys.executable,
            str(PROJECT / "megascope.py"),
            "compile",
            target,
            "-o",
            str(tmp_path / "out"),
        ]
        parent = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            # A shell starts what it runs in the background with interrupts ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
        )
        deadline = time.monotonic() + 60
        while not (marker.exists() and marker.read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        parent.send_signal(number)
        parent.communicate(timeout=30)
        assert parent.returncode == 128 + number
        with pytest.raises(ProcessLookupError):
            os.kill(int(marker.read_text()), 0)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["kernel.py", "pid"]

    @pytest.mark.slow
    def test_probe_effect(self, tmp_path: Path) -> None:
        out = tmp_path / "out"
        done = self.run("mlp", "--set", "layers=2", "--probe-effect", "-o", str(out))
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert lines[0] == str(out)
        counts = json.loads((out / "manifest.json").read_text())["probe_effect"]["counts"]
        assert counts["regions"]["bundles"] == open_capture(out).kernel_program().bundle_count
        assert counts["off"]["bundles"] == open_capture(out / "level-off").kernel_program().bundle_count
        assert counts["off"]["bundles"] < counts["regions"]["bundles"]
        assert any(line.startswith("bundles (counted)") for line in lines)
