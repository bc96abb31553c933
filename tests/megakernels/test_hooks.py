"""The hooks: nothing in the program at `off`, scopes and the layer's number at `regions`, names by line."""

import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.extend import source_info_util

from megakernels import hooks, registry
from megakernels.mlp.build import build
from megakernels.mlp.kernel import PHASES

SIZES = {"hidden": 256, "ffn": 256, "layers": 2, "cores": 1, "block": 128, "pack": 1, "ring_depth": 2}


def equations(jaxpr: Any) -> Iterator[Any]:
    """Every equation of a traced program, those of loops and branches too."""
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for nested in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(nested, "jaxpr", nested)
                if hasattr(inner, "eqns"):
                    yield from equations(inner)


def traced(level: str) -> list[Any]:
    """The equations of the MLP kernel."""
    kernel = build(level=level, **SIZES)
    function = kernel.global_function(kernel.mesh(jax.devices()))
    return list(equations(jax.make_jaxpr(function)(*kernel.arguments).jaxpr))


def scopes(program: list[Any]) -> set[str]:
    return {part for equation in program for part in str(equation.source_info.name_stack).split("/") if part}


def test_off_leaves_nothing_in_the_program() -> None:
    program = traced("off")
    assert any(equation.primitive.name == "dma_start" for equation in program)
    assert not any(equation.primitive.name == "trace_value" for equation in program)
    assert not scopes(program) & {*PHASES, hooks.LAYER_SCOPE}


def test_regions_names_phases_and_carries_the_layer() -> None:
    program = traced("regions")
    values = [equation for equation in program if equation.primitive.name == "trace_value"]
    assert [equation.params["label"] for equation in values] == [hooks.LAYER_SCOPE]
    assert {*PHASES, hooks.LAYER_SCOPE} - scopes(program) == {"gather"}  # empty on one core


def test_the_two_levels_differ_in_nothing_else() -> None:
    names = {level: [equation.primitive.name for equation in traced(level)] for level in hooks.LEVELS}
    assert [name for name in names["regions"] if name != "trace_value"] == names["off"]


def test_the_level_ends_with_the_function_it_was_set_for() -> None:
    seen = []
    hooks.instrument(lambda: seen.append(hooks._level.get()), "regions")()
    assert seen == ["regions"]
    assert hooks._level.get() == "off"


def test_copies_are_named_by_the_line_of_the_kernel_that_starts_them() -> None:
    traced("off")
    kernel = Path(inspect.getfile(build)).with_name("kernel.py")
    lines = kernel.read_text().splitlines()
    named = {entry["name"]: entry for entry in hooks.copy_names() if Path(entry["file"]) == kernel}
    for name in ("w_gate", "w_up", "w_down"):
        assert f'"{name}").start()' in lines[named[name]["line"] - 1]


def test_a_copy_started_in_a_helpers_branch_carries_the_callers_line(tmp_path) -> None:
    helper = tmp_path / "helper.py"
    helper.write_text(
        "import jax\n"
        "from megakernels.hooks import at_callers_line, helper_module\n"
        "helper_module(__file__)\n"
        "def start_if(condition, copy):\n"
        "    jax.lax.cond(condition, at_callers_line(copy.start), lambda: None)\n"
    )
    module: dict = {"__file__": str(helper)}
    exec(compile(helper.read_text(), str(helper), "exec"), module)

    def kernel(source, out, done) -> None:
        copy = pltpu.make_async_copy(source, out, done)
        module["start_if"](source.shape[0] == jnp.int32(8), copy)  # the line to find
        copy.wait()

    call = pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((8, 128), jnp.float32),
        in_specs=[pl.BlockSpec(memory_space=pltpu.HBM)],
        out_specs=pl.BlockSpec(memory_space=pltpu.HBM),
        scratch_shapes=(pltpu.SemaphoreType.DMA,),
    )
    program = equations(jax.make_jaxpr(call)(jnp.zeros((8, 128))).jaxpr)
    start = next(equation for equation in program if equation.primitive.name == "dma_start")
    text = inspect.getsource(inspect.getmodule(kernel)).splitlines()
    line = next(n for n, code in enumerate(text, 1) if code.endswith("copy)  # the line to find"))
    assert f"{__file__}:{line}:" in source_info_util.summarize(start.source_info)


def test_listing_the_kernels_imports_no_jax() -> None:
    probe = (
        "import sys; from megakernels.registry import KERNELS; print(sorted(KERNELS), 'jax' in sys.modules)"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", probe], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("False")
    assert "mlp" in done.stdout


def test_every_registered_kernel_has_a_builder_with_defaults() -> None:
    for name, builder in registry.KERNELS.items():
        inspect.signature(builder).bind()  # raises where a parameter must be given, which names it
        assert callable(builder), name


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="choose one of off, regions"):
        hooks.instrument(lambda: None, "full")  # type: ignore[arg-type]
