"""Searches and fetches for a researcher, through the bridge that started it.

The bridge listens on a Unix socket, whose path is in CORRAL_WEB, asks the search
and fetch sidecars and remembers what they gave: only those pages count as sources.

The fetch sidecar has 6 slots and no queue. Pages are therefore asked for in waves
of at most 6, whichever calls they come from, and one that was refused as busy is
asked for again on later waves, up to 3 times more.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, List, Tuple
from urllib.parse import urlencode

from agent.web_search_provider import WebSearchProvider

WAVE = 6
TRIES = 4  # the first and 3 more
PAUSE = 1.0  # seconds before a wave that asks again
PAUSE_MOST = 10.0  # however long the sidecar would have it

SEARCH_TIMEOUT = 35  # the bridge asks twice, 15 s each
FETCH_TIMEOUT = 65

# One for the process: several web_extract calls of one turn run side by side.
_slots = threading.BoundedSemaphore(WAVE)


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("corral-bridge", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _ask(method: str, target: str, body: Any, timeout: float) -> Tuple[int, Dict[str, str], Any]:
    """One request to the bridge: status, headers, decoded body."""
    connection = _Connection(os.environ.get("CORRAL_WEB", ""), timeout)
    try:
        payload = None if body is None else json.dumps(body).encode()
        connection.request(method, target, payload, {"Content-Type": "application/json"} if payload else {})
        response = connection.getresponse()
        headers = {name.lower(): value for name, value in response.getheaders()}
        raw = response.read()
    finally:
        connection.close()
    try:
        return response.status, headers, json.loads(raw)
    except ValueError:
        return response.status, headers, {}


def _field(data: Any, name: str) -> str:
    value = data.get(name) if isinstance(data, dict) else None
    return value if isinstance(value, str) else ""


def _failed(url: str, error: str) -> Dict[str, Any]:
    return {"url": url, "title": "", "content": "", "raw_content": "", "error": error}


def _fetch(url: str) -> Tuple[Dict[str, Any], float]:
    """One page, and how long to wait before asking for it again: negative if not at all."""
    try:
        with _slots:
            status, headers, data = _ask("POST", "/v1/fetch", {"url": url}, FETCH_TIMEOUT)
    except Exception as exc:  # noqa: BLE001 - one page fails alone
        return _failed(url, f"fetch_unavailable: {exc}"), -1.0
    if status == 503:
        try:
            pause = float(headers.get("retry-after", PAUSE))
        except ValueError:
            pause = PAUSE
        return _failed(url, "busy: the fetcher has no free slot; try again later"), min(max(pause, 0.0), PAUSE_MOST)
    if status != 200 or not isinstance(data, dict):
        reason = _field(data, "error") or f"status {status}"
        detail = _field(data, "detail")
        return _failed(url, f"{reason}: {detail}" if detail else reason), -1.0
    page_status = data.get("status")
    if isinstance(page_status, int) and page_status >= 400:
        return _failed(url, f"the page answered with HTTP status {page_status}"), -1.0
    text = _field(data, "content_markdown")
    if data.get("truncated") is True:
        text += "\n\n[cut here: the page is longer than what is fetched]"
    return {
        "url": url,
        "title": _field(data, "title"),
        "content": text,
        "raw_content": text,
        "metadata": {"final_url": _field(data, "final_url"), "content_type": _field(data, "content_type")},
    }, -1.0


class CorralWebProvider(WebSearchProvider):
    """Search and extract through corral's bridge."""

    @property
    def name(self) -> str:
        return "corral"

    def is_available(self) -> bool:
        return bool(os.environ.get("CORRAL_WEB"))

    def supports_search(self) -> bool:
        return True

    def supports_extract(self) -> bool:
        return True

    def search(self, query: str, limit: int = 5) -> Dict[str, Any]:
        try:
            status, _, data = _ask("GET", "/search?" + urlencode({"q": query}), None, SEARCH_TIMEOUT)
        except Exception as exc:  # noqa: BLE001 - the model is told
            return {"success": False, "error": f"search_unavailable: {exc}"}
        if status != 200 or not isinstance(data, dict):
            return {"success": False, "error": _field(data, "error") or f"search_unavailable: status {status}"}
        engines = [e for e in data.get("engines_failed") or [] if isinstance(e, str)]
        results = [r for r in data.get("results") or [] if isinstance(r, dict)]
        if not results and engines:
            # An empty page would read as: there is nothing.
            return {
                "success": False,
                "error": "search_unavailable: the search engines did not answer; this does not mean that there is nothing",
                "engines_failed": engines,
            }
        results.sort(key=lambda r: r["score"] if isinstance(r.get("score"), (int, float)) else 0.0, reverse=True)
        web = [
            {"title": _field(r, "title"), "url": _field(r, "url"), "description": _field(r, "content"), "position": i + 1}
            for i, r in enumerate(results[:limit])
        ]
        found: Dict[str, Any] = {"success": True, "data": {"web": web}}
        if engines:
            found["engines_failed"] = engines
        return found

    def extract(self, urls: List[str], **_: Any) -> List[Dict[str, Any]]:
        results: List[Dict[str, Any]] = [_failed(url, "not asked for") for url in urls]
        waiting = list(range(len(urls)))
        for _try in range(TRIES):
            again: List[int] = []
            pause = 0.0
            for start in range(0, len(waiting), WAVE):
                wave = waiting[start : start + WAVE]
                with ThreadPoolExecutor(max_workers=WAVE) as pool:
                    answers = list(pool.map(_fetch, [urls[i] for i in wave]))
                for i, (result, wait) in zip(wave, answers):
                    results[i] = result
                    if wait >= 0:
                        again.append(i)
                        pause = max(pause, wait)
            waiting = again
            if not waiting:
                break
            if _try < TRIES - 1:
                time.sleep(pause)
        return results
