"""A page as the browser would show it, without a browser: its layout, and what its callbacks put into it.

Talks to the application exactly as Dash's own front end does, so that whatever a page shows can be exported,
and an exported figure is the figure of the page. Callbacks that run in the browser are left out.
"""

import json
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from dash import Dash

from dashboard.security import COOKIE

Node = dict[str, Any]
_UPDATE = "/_dash-update-component"
_LOCAL = "http://127.0.0.1"
CONTROLS = frozenset(["Dropdown", "Slider", "RangeSlider", "Input", "Checklist", "RadioItems"])
PATIENCE = 120.0  # seconds that work in the background may take


@dataclass(frozen=True, slots=True)
class Asked:
    """How a page is asked for.

    Attributes:
        search: of its address.
        theme: "light" or "dark".
        values: component id to value, where it is not the one of the layout (what a user chose).
        token: the one the dashboard asks for, if any.
    """

    search: str = ""
    theme: str = "light"
    values: dict[str, Any] = field(default_factory=dict)
    token: str | None = None


class Headless:
    """One page of one capture.

    Args:
        app: the dashboard.
        pathname: address of the page, as the browser has it.
        asked: the rest of what the browser has.
    """

    def __init__(self, app: Dash, pathname: str, asked: Asked) -> None:
        self._client = app.server.test_client()
        if asked.token:
            self._client.set_cookie(COOKIE, asked.token, domain="127.0.0.1")
        fixed = {"url": {"pathname": pathname, "search": asked.search}, "theme": {"data": asked.theme}}
        self._nodes: dict[str, Node] = {k: {"props": v} for k, v in fixed.items()}
        answer = self._client.get("/_dash-dependencies", base_url=_LOCAL)
        self._callbacks = [c for c in answer.get_json() if not c["clientside_function"]]
        shell = next(c for c in self._callbacks if "page.children" in c["output"])
        found = self._ask(shell)
        self.name: Any = found.get("capture-name", {}).get("children")
        self.page: Any = found.get("page", {}).get("children")
        self._enter(self.page)
        for identity, value in asked.values.items():
            if self._nodes.get(identity, {}).get("type") in CONTROLS:
                self._nodes[identity]["props"]["value"] = value
        self._run()

    def _run(self) -> None:
        """Run every callback of the page once, those that others wait for first; poll what is polled."""
        pending = [c for c in self._callbacks if self._belongs(c)]
        done: set[str] = set()
        while True:
            fresh = [c for c in self._callbacks if self._belongs(c) and c["output"] not in done]
            if not fresh:
                break
            waited_for = {(o["id"], o["property"]) for c in fresh for o in _outputs(c["output"])}
            ready = [
                c for c in fresh if not any((i["id"], i["property"]) in waited_for for i in c["inputs"])
            ] or fresh[:1]
            for callback in ready:
                done.add(callback["output"])
                self._apply(self._ask(callback))
        end = time.monotonic() + PATIENCE
        for callback in pending:
            polls = [i["id"] for i in callback["inputs"] if i["property"] == "n_intervals"]
            while any(not self._prop(p, "disabled") for p in polls) and time.monotonic() < end:
                time.sleep(0.2)
                self._apply(self._ask(callback))

    def _belongs(self, callback: Node) -> bool:
        """Whether a callback runs by itself when this page appears."""
        outputs = _outputs(callback["output"])
        if callback["prevent_initial_call"] or "@" in callback["output"] or "{" in callback["output"]:
            return False
        return all(o["id"] in self._nodes and o["id"] not in {"url", "theme", "page"} for o in outputs)

    def _ask(self, callback: Node) -> dict[str, dict[str, Any]]:
        """What a callback answers: component id -> property -> value."""
        outputs = _outputs(callback["output"])
        inputs = [self._value(i) for i in callback["inputs"]]
        body = {
            "output": callback["output"],
            "outputs": outputs if callback["output"].startswith("..") else outputs[0],
            "inputs": inputs,
            "state": [self._value(s) for s in callback["state"]],
            "changedPropIds": [],
        }
        answer = self._client.post(_UPDATE, json=body, base_url=_LOCAL)
        found = (answer.get_json(silent=True) or {}) if answer.status_code == 200 else {}
        return dict(found.get("response") or {})

    def _apply(self, found: dict[str, dict[str, Any]]) -> None:
        for identity, props in found.items():
            if identity in self._nodes:
                self._nodes[identity]["props"].update(props)
                self._enter(props.get("children"))

    def _value(self, wanted: Node) -> Any:
        """An input or state with its value; a list of them where the id is a pattern."""
        identity = wanted["id"]
        if not identity.startswith("{"):
            return {**wanted, "value": self._prop(identity, wanted["property"])}
        pattern = json.loads(identity)
        return [
            {
                "id": node["props"]["id"],
                "property": wanted["property"],
                "value": node["props"].get(wanted["property"]),
            }
            for node in self._nodes.values()
            if isinstance(node["props"].get("id"), dict)
            and all(v == ["ALL"] or node["props"]["id"].get(k) == v for k, v in pattern.items())
        ]

    def _prop(self, identity: str, name: str) -> Any:
        return self._nodes.get(identity, {"props": {}})["props"].get(name)

    def _enter(self, tree: Any) -> None:
        """Remember every component of a tree by its id."""
        if isinstance(tree, list):
            for child in tree:
                self._enter(child)
        elif isinstance(tree, dict) and "props" in tree:
            identity = tree["props"].get("id")
            if identity is not None:
                self._nodes[_key(identity)] = tree
            self._enter(tree["props"].get("children"))


def _key(identity: Any) -> str:
    """An id as the browser writes it into an element."""
    if isinstance(identity, dict):
        return json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return str(identity)


def _outputs(key: str) -> list[dict[str, str]]:
    """The outputs that a callback's key names: `a.b`, or `..a.b...c.d..`."""
    parts = key[2:-2].split("...") if key.startswith("..") else [key]
    return [dict(zip(("id", "property"), part.rsplit(".", 1), strict=True)) for part in parts]


def address(identity: str, page: str) -> str:
    """The path of a page of a capture."""
    return f"/{quote(identity)}/{quote(page)}"
