"""Runs the dashboard until it is told to stop."""

import logging
import signal
import socket
import sys
import threading
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from analyzer.errors import UsageError


def make_server(app: Any, host: str, port: int) -> Any:
    """A threaded HTTP server bound to (host, port); port 0 takes a free one.

    Raises:
        UsageError: the address cannot be bound.
    """
    from werkzeug.serving import make_server as make

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    address = host.strip("[]")
    try:
        # Bound here, because werkzeug prints advice of its own when it cannot bind.
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.create_server((address, port), family=family)
    except (OSError, OverflowError, UnicodeError) as error:
        fault = (getattr(error, "strerror", None) or "the address cannot be used").lower()
        cure = "Stop what uses it, or give another --port or --host."
        raise UsageError(f"{host}:{port}", fault, cure) from None
    number = listener.getsockname()[1]
    server = make(address, number, app.server, threaded=True, fd=listener.detach())
    server.server_name, server.server_port = address, number  # set by the bind that we did ourselves
    return server


def serve(paths: list[Path], host: str, port: int, chip: str | None = None) -> None:
    """Serve captures and print the address; returns after Ctrl-C or SIGTERM.

    Raises:
        MegascopeError: a path does not exist or the address cannot be bound.
    """
    from dashboard import security, worker
    from dashboard.app import create_app
    from dashboard.loading import load, what_if_report

    token = None if security.is_local(host) else security.new_token()
    app = create_app(
        paths,
        host=host,
        token=token,
        loader=partial(load, chip=chip),
        what_if=partial(what_if_report, chip=chip),
    )
    server = make_server(app, host, port)
    shown = f"[{host}]" if ":" in host else host
    query = f"/?token={token}" if token else "/"
    print(f"Megascope dashboard at http://{shown}:{server.server_port}{query}  (Ctrl-C stops it)", flush=True)
    if token:
        print(
            "note: reachable from other machines; whoever has the address above can read the captures",
            file=sys.stderr,
        )

    def stop(number: int, frame: FrameType | None) -> None:
        del number, frame
        threading.Thread(target=server.shutdown, daemon=True).start()

    previous = {s: signal.signal(s, stop) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        server.serve_forever(poll_interval=0.2)
    finally:
        worker.stop()
        server.server_close()
        for number, handler in previous.items():
            signal.signal(number, handler)
