"""The findings page: every finding with its evidence, doubt and advice, linked to where it happens."""

from typing import Any

from dash import Dash, dcc, html

from dashboard import text
from dashboard.components import link, panel
from dashboard.context import Context
from dashboard.loading import Loaded
from dashboard.places import window_of

KEY = "findings"
TITLE = "Findings"


def layout(loaded: Loaded, identity: str) -> html.Div:
    """The page of one capture."""
    found = loaded.fact("findings") or []
    if not found:
        return panel(
            "No findings",
            loaded.findings_unknown
            or "No rule found anything in this capture, or it holds too little for the rules to look at.",
            "The overview still shows where the step goes.",
        )
    saved = [f.get("saving_ps") for f in found]
    known = sum(1 for s in saved if s is not None)
    return html.Div(
        [
            html.P(
                f"{text.count(len(found), 'finding')}, largest estimated saving first, {known} with an "
                "estimate. Savings overlap: they do not add up.",
                className="note",
            ),
            *[_card(loaded, identity, finding) for finding in found],
        ],
        className="page page-findings",
    )


def _card(loaded: Loaded, identity: str, finding: dict[str, Any]) -> html.Article:
    window = window_of(loaded, finding)
    bundles = finding.get("bundles")
    links: list[Any] = []
    if window:
        where = link(identity, "timeline", **{"from": window[0], "to": window[1]})
        links.append(dcc.Link("Show in the timeline", href=where, className="button finding-link"))
    if bundles:
        where = link(identity, "bundles", bundle=f"{bundles[0]:#x}")
        links.append(dcc.Link(f"Bundles {text.bundles(*bundles)}", href=where, className="button"))
    saving = finding.get("saving_ps")
    numbers = [
        ("time", text.duration(finding.get("time_ps"))),
        ("of the step", text.percent(finding.get("share"))),
        ("could save", "not estimated" if saving is None else f"up to {text.duration(saving)}"),
        ("confidence", str(finding.get("confidence") or text.UNKNOWN)),
        ("provenance", str(finding.get("provenance") or text.UNKNOWN)),
    ]
    layers = [x for x in finding.get("layers") or [] if x is not None]
    where_words = " · ".join(
        part
        for part in (
            text.shorten(finding.get("source") or "", 160),
            f"phase {text.shorten(finding['phase'], 40)}" if finding.get("phase") else "",
            f"layers {_ranges(layers)}" if layers else "",
            text.count(finding.get("count"), "occurrence") if finding.get("count") else "",
        )
        if part
    )
    details = [
        ("Why it might be wrong", finding.get("might_be_wrong_because")),
        ("Try", finding.get("try")),
        ("Verify", finding.get("verify_with")),
        ("Saving rests on", finding.get("saving_basis")),
    ]
    return html.Article(
        [
            html.Div(
                [
                    html.H2(f"{finding.get('id') or ''} {text.shorten(finding.get('title') or '', 160)}"),
                    html.Div(links, className="links"),
                ],
                className="heading",
            ),
            html.Div(
                [
                    html.Span(
                        [html.Span(f"{k} ", className="fact-label"), html.Span(v, className="fact-strong")]
                    )
                    for k, v in numbers
                ],
                className="facts",
            ),
            html.P(where_words or f"place {text.UNKNOWN}", className="finding-place"),
            html.Ul([html.Li(text.shorten(e, 400)) for e in finding.get("evidence") or []]),
            html.Dl([item for k, v in details if v for item in (html.Dt(k), html.Dd(text.shorten(v, 600)))]),
        ],
        className="card",
    )


def _ranges(numbers: list[int]) -> str:
    """`0-3, 7` for [0, 1, 2, 3, 7]."""
    out: list[list[int]] = []
    for n in sorted(set(numbers)):
        if out and n == out[-1][1] + 1:
            out[-1][1] = n
        else:
            out.append([n, n])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in out[:8]) + (", …" if len(out) > 8 else "")


def register(app: Dash, context: Context) -> None:
    """The page needs no callbacks."""
    del app, context
