"""corral's web provider: see provider.py."""

from .provider import CorralWebProvider


def register(ctx) -> None:
    ctx.register_web_search_provider(CorralWebProvider())
