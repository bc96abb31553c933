"""The Dash application: shell, addresses, and the pages."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html, set_props

from analyzer.errors import MegascopeError
from dashboard import components, export_route, security, text
from dashboard.context import Context, split
from dashboard.jobs import Jobs
from dashboard.library import Library
from dashboard.loading import Loader, WhatIf, load, what_if_report
from dashboard.pages import (
    bundles,
    captures,
    collectives,
    difference,
    findings,
    memory,
    overview,
    post,
    timeline,
    timeline_data,
    whatif,
)

PAGES: tuple[Any, ...] = (
    overview,
    timeline,
    findings,
    bundles,
    memory,
    collectives,
    whatif,
    difference,
    post,
)
ASSETS = Path(__file__).parent / "assets"


def create_app(
    paths: Sequence[Path],
    *,
    host: str = "127.0.0.1",
    token: str | None = None,
    loader: Loader = load,
    what_if: WhatIf = what_if_report,
) -> Dash:
    """A dashboard over captures.

    Args:
        paths: captures, or folders of captures.
        host: address it will listen on, for the Host check.
        token: required of every request if not None.
        loader: turns a path into a `Loaded`; replaceable for tests.
        what_if: the report of a path under machine overrides; replaceable for tests.
    """
    context = Context(Library(list(paths), loader), what_if, Jobs())
    app = Dash(
        "megascope",
        assets_folder=str(ASSETS),
        title="Megascope",
        update_title="",
        serve_locally=True,
        suppress_callback_exceptions=True,
        enable_mcp=False,
        use_pages=False,
        on_error=_report_fault,
    )
    app.layout = shell()
    _register(app, context)
    timeline_data.register(app.server, context)
    export_route.register(app, context, PAGES, token)
    security.guard(app.server, host, token)
    app.server.config["SCRIPT_HASHES"] = app.csp_hashes()
    return app


def _report_fault(error: Exception) -> None:
    """Log a fault of ours and say so in the page, which stays as it was."""
    logging.getLogger("megascope").error("a callback failed", exc_info=error)
    words = (
        f"Something went wrong: {type(error).__name__}. The terminal that runs the dashboard has the details."
    )
    set_props("toast", {"children": words})


def shell() -> html.Div:
    """What stays while pages change."""
    return html.Div(
        [
            dcc.Location(id="url", refresh="callback-nav"),
            dcc.Store(id="theme", storage_type="local"),
            html.Header(
                [
                    html.A("Megascope", href="/", className="brand"),
                    html.Div(id="capture-name", className="capture-name"),
                    html.Nav(id="pages", className="pages"),
                    html.Button("Save", id="save-page", title="Save this page as one HTML file"),
                    html.Button("Dark", id="theme-toggle", title="Switch between light and dark"),
                ],
                className="top",
            ),
            html.Div(id="toast", className="toast", role="alert"),
            components.waiting(html.Main(id="page"), "page-loading", {"page": "children"}),
        ],
        id="shell",
    )


def _register(app: Dash, context: Context) -> None:
    app.clientside_callback(
        ClientsideFunction("megascope", "theme"),
        Output("theme", "data"),
        Output("theme-toggle", "children"),
        Input("theme-toggle", "n_clicks"),
        State("theme", "data"),
    )

    @app.callback(
        Output("page", "children"),
        Output("capture-name", "children"),
        Output("pages", "children"),
        Input("url", "pathname"),
    )
    def show(pathname: str | None) -> tuple[Any, Any, Any]:
        return page(context, pathname)

    captures.register(app, context)
    for module in PAGES:
        module.register(app, context)


def page(context: Context, pathname: str | None) -> tuple[Any, Any, Any]:
    """(page, capture name, links to its pages) for an address; errors become pages that say what to do."""
    identity, key = context.identity(pathname), split(pathname)[1]
    if not identity:
        return captures.layout(context), "", ""
    module = next((m for m in PAGES if key == m.KEY), PAGES[0])
    links = [
        dcc.Link(m.TITLE, href=components.link(identity, m.KEY), className="here" if m is module else "")
        for m in PAGES
    ]
    try:
        loaded = context.library.get(identity)
        body = module.layout(loaded, identity)
    except MegascopeError as error:
        return components.error_panel(error), "", links
    except Exception as error:
        logging.getLogger("megascope").exception("page %s", pathname)
        return components.error_panel(error), "", links
    name = [html.Span(text.shorten(loaded.title, 60), title=text.shorten(loaded.path, 200))]
    name += [html.Span(components.machine(loaded), className="muted"), components.badge(loaded.provenance)]
    return body, name, links
