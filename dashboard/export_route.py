"""Hands out pages as files: the button "Save page" asks here."""

import json
import logging
from typing import Any

from dash import Dash
from flask import Response, request

from analyzer.errors import MegascopeError
from dashboard.context import Context, split
from dashboard.export_page import Page, export_page
from dashboard.headless import Asked

ROUTE = "/_export"
LONGEST_QUESTION = 16_384  # bytes


def register(app: Dash, context: Context, pages: tuple[Page, ...], token: str | None) -> None:
    """Add the route."""

    @app.server.post(ROUTE)
    def export() -> Response:
        raw = request.get_data(cache=False) if (request.content_length or 0) <= LONGEST_QUESTION else b""
        try:
            question = json.loads(raw)
        except ValueError:
            question = {}
        try:
            body = answer(app, context, pages, question if isinstance(question, dict) else {}, token)
        except MegascopeError as error:
            return Response(f"{error.fault}. {error.cure}", 404, mimetype="text/plain")
        except Exception as error:
            logging.getLogger("megascope").exception("a page could not be exported")
            return Response(f"Something went wrong: {type(error).__name__}.", 500, mimetype="text/plain")
        # Never shown as a page of this site: it carries a script of its own.
        headers = {"Content-Disposition": "attachment; filename=megascope.html"}
        return Response(body, mimetype="text/html", headers=headers)


def answer(
    app: Dash, context: Context, pages: tuple[Page, ...], question: dict[str, Any], token: str | None = None
) -> str:
    """The file for a question as the page sends it: path, search, theme, values.

    Raises:
        MegascopeError: no such capture, or it cannot be read.
    """
    path = str(question.get("path") or "")
    loaded, key = context.loaded(path), split(path)[1]
    page = next((p for p in pages if key == p.KEY), pages[0])
    values = question.get("values")
    asked = Asked(
        search=str(question.get("search") or ""),
        theme="dark" if question.get("theme") == "dark" else "light",
        values=values if isinstance(values, dict) else {},
        token=token,
    )
    return export_page(app, loaded, context.identity(path), page, asked)
