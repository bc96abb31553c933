"""The tools by name: what they take, what they give, and how a call becomes an answer that fits."""

import difflib
import functools
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agents.limits import Answer, fit
from agents.root import Root
from analyzer.errors import UsageError

Json = dict[str, Any]


def _text(about: str, **more: Any) -> Json:
    return {"type": "string", "maxLength": 4096, "description": about, **more}


def _texts(about: str) -> Json:
    return {
        "type": "array",
        "items": {"type": "string", "maxLength": 400},
        "maxItems": 64,
        "description": about,
    }


def _whole(about: str, least: int, most: int, default: int) -> Json:
    return {"type": "integer", "minimum": least, "maximum": most, "default": default, "description": about}


def _flag(about: str, *, default: bool = False) -> Json:
    return {"type": "boolean", "default": default, "description": about}


def _paged(limit: int) -> Json:
    return {
        "limit": _whole(
            "Most entries of the list in the answer; fewer where they would not fit.", 1, 500, limit
        ),
        "offset": _whole("First entry; page.next_offset of the last answer goes on.", 0, 10**9, 0),
    }


CAPTURE = _text("A capture, dump folder, bundles file or trace, relative to the root of the server.")
CHIP = _text("Chip, only where the dump does not say it.", enum=["tpu7x", "v6e", "v5p", "v5e"])
PROGRAM = _text("Program of the dump to take as the kernel, where the choice is not the one you mean.")
CORES = _text("Cores to simulate.", enum=["auto", "mirrored", "all"], default="auto")
PHASES = _texts("Only these phases and what is nested in them.")
LAYERS = {"type": "array", "items": {"type": "integer"}, "maxItems": 512, "description": "Only these layers."}
ONE = {"capture": CAPTURE, "chip": CHIP, "program": PROGRAM}
TWO = {
    "a": _text("The capture before, or its report kept as .json."),
    "b": _text("The capture after, or its report kept as .json."),
    "chip": CHIP,
    "cores": CORES,
}


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool.

    Attributes:
        function: `module:function`, called with the root and the arguments; imported at the first call.
        properties: JSON Schema of each argument.
        required: arguments that must be given. gives: members that every answer has.
        writes: whether it writes more than the cache of derived files.
    """

    name: str
    title: str
    description: str
    function: str
    properties: Json
    required: tuple[str, ...]
    gives: tuple[str, ...]
    writes: bool = False

    @property
    def input_schema(self) -> Json:
        """JSON Schema of the arguments."""
        return {
            "type": "object",
            "properties": self.properties,
            "required": list(self.required),
            "additionalProperties": False,
        }

    @property
    def output_schema(self) -> Json:
        """JSON Schema of an answer: what is always there. More members may be."""
        return {"type": "object", "required": ["schema_version", *self.gives]}


TOOLS = (
    Tool(
        "compile",
        "Compile a kernel for a TPU that need not be there",
        "Compile a Pallas kernel for TPU on this machine, no TPU needed, and write a capture. Runs the Python"
        " of the target. Seconds for a small kernel, minutes for a model. First step of every loop.",
        "agents.making:compile_",
        {
            "target": _text(
                "A kernel of the package (mlp, qwen) or path/to/file.py:function below the root."
            ),
            "output": _text("Folder for the capture, below the root."),
            "topology": _text("Slice in chips, such as 1x1x1 (one chip) or 2x2x1 (four, the default)."),
            "chip": CHIP,
            "options": {
                "type": "object",
                "description": 'Keyword options of the build function, such as {"buffers": 1}.',
            },
            "level": _text("Instrumentation.", enum=["regions", "off"], default="regions"),
            "force": _flag("Replace the capture that is there."),
            "timeout_seconds": _whole("Stop the compile after this time.", 1, 1800, 600),
        },
        ("target", "output"),
        ("capture", "program"),
        writes=True,
    ),
    Tool(
        "report",
        "What bounds the step",
        "The digest of a capture (at most 30 lines: what bounds the step, time per phase and layer, largest"
        " bubbles, top findings) and its figures. Read this first. `section` gives one list instead.",
        "agents.reading:report",
        {
            **ONE,
            "cores": CORES,
            "section": _text(
                "summary, or one list of the report.",
                enum=[
                    "summary",
                    "phases",
                    "layers",
                    "layer_kinds",
                    "bubbles",
                    "bubble_groups",
                    "wait_groups",
                    "notes",
                ],
                default="summary",
            ),
            "phases": PHASES,
            "layers": LAYERS,
            **_paged(20),
        },
        ("capture",),
        ("capture", "step"),
    ),
    Tool(
        "findings",
        "Inefficiencies, by what the step would gain",
        "Findings with time, saving, confidence, source line, bundles, evidence, why it might be wrong, what"
        " to try and how to verify. Ranked by saving; savings overlap and must not be added up.",
        "agents.reading:findings",
        {
            **ONE,
            "cores": CORES,
            "rules": _texts("Only these rules: MS102, or a family, MS1xx."),
            "phases": PHASES,
            "layers": LAYERS,
            "brief": _flag("Only what, where and how much."),
            **_paged(5),
        },
        ("capture",),
        ("capture", "step", "findings", "page"),
    ),
    Tool(
        "show",
        "Compiled bundles",
        "Bundles with instructions, occupied units, source lines, phase and how often each ran. Give the"
        " bundles or the source line of a finding. `list: loops` gives the loops.",
        "agents.reading:show",
        {
            **ONE,
            "bundles": _text("Addresses, half open: 0x2de:0x2f0."),
            "source": _text("file.py, file.py:120 or file.py:100-130."),
            "grep": _text("Regular expression over an instruction as printed.", maxLength=200),
            "opcode": _text("Mnemonic: vmatmul, sbr.rel, vpop.*."),
            "loop": _text("Number of a loop, or the address of its first bundle."),
            "counts": _flag("Execute the program to say how often bundles run.", default=True),
            "list": _text("What to list.", enum=["bundles", "loops"], default="bundles"),
            **_paged(20),
        },
        ("capture",),
        ("program", "page"),
    ),
    Tool(
        "diff",
        "What a change did",
        "What changed from capture a to capture b: step time, figures, phases, findings that appeared,"
        " disappeared or changed. Refuses what is not comparable and says why.",
        "agents.reading:diff",
        {**TWO, "force": _flag("Compare what is not comparable."), **_paged(10)},
        ("a", "b"),
        ("equal", "step", "figures", "phases", "findings", "page"),
    ),
    Tool(
        "gate",
        "May the change go in?",
        "passed true or false with the reasons: the step grew, a phase grew, an unwanted finding is there.",
        "agents.reading:gate",
        {
            **TWO,
            "max_regression": _text("Allowed growth of the step, 2% or 0.02.", default="2%"),
            "max_phase_regression": _text("Allowed growth of any phase, as a share of the step."),
            "forbid": _texts("Rules that b must not have: MS1xx."),
            "forbid_new": _texts("Rules that b must not have where a has not."),
        },
        ("a", "b"),
        ("passed", "reasons", "step"),
    ),
    Tool(
        "what_if",
        "The step on another machine, or without something",
        "Simulate the same bundles again with changed machine parameters or with phases that take no time;"
        " with neither, list what each ideal (infinite HBM, no latency, free messages, without a phase) would"
        " save: the most that work on it can gain. Ask before a costly edit. That list takes seconds for a"
        " small kernel, a minute or more for a model's; a question of its own takes one simulation.",
        "agents.reading:what_if",
        {
            **ONE,
            "cores": CORES,
            "changes": {
                "type": "object",
                "additionalProperties": {"type": ["string", "number"]},
                "maxProperties": 64,
                "description": 'Machine parameters: {"hbm.bandwidth": "x2", "hbm.latency": "/2"}; else SI.',
            },
            "without": _texts("Phases that take no time."),
            **_paged(20),
        },
        ("capture",),
        ("capture", "step_ps", "provenance"),
    ),
)


@functools.cache
def by_name() -> Mapping[str, Tool]:
    """The tools."""
    return {tool.name: tool for tool in TOOLS}


def call(root: Root, tool: Tool, arguments: Json, most_bytes: int) -> Json:
    """The answer of a tool in at most `most_bytes` bytes of JSON.

    Raises:
        MegascopeError: what the caller can mend: arguments, paths, inputs.
    """
    check(tool, arguments)
    module, _, name = tool.function.partition(":")
    answer: Answer = getattr(importlib.import_module(module), name)(root, arguments)
    return fit(answer, most_bytes)


def check(tool: Tool, arguments: Json) -> None:
    """Refuse arguments that the schema does not allow.

    Raises:
        UsageError: the first of them.
    """
    unknown = sorted(set(arguments) - set(tool.properties))
    if unknown:
        near = difflib.get_close_matches(unknown[0], tool.properties, 1)
        meant = f"Did you mean {near[0]}? " if near else ""
        raise UsageError(
            f"{tool.name}: {unknown[0][:60]}",
            "no such argument",
            f"{meant}Arguments: {', '.join(tool.properties)}.",
        )
    missing = [name for name in tool.required if name not in arguments]
    if missing:
        about = tool.properties[missing[0]]["description"]
        raise UsageError(f"{tool.name}: {missing[0]}", "is missing", about)
    from jsonschema import Draft202012Validator

    fault = next(iter(Draft202012Validator(tool.input_schema).iter_errors(arguments)), None)
    if fault is not None:
        place = ".".join(str(part) for part in fault.absolute_path)
        about = tool.properties[str(fault.absolute_path[0])]["description"] if fault.absolute_path else ""
        raise UsageError(f"{tool.name}: {place}", fault.message[:200], about)
