"""Says, as JSON on standard output, what Hermes goes by in HERMES_HOME.

The imports are those of a start, in its order: the home is found, the files of its
environment are read, then its configuration, as the console and as everything else
reads it.
"""
import json
import os

out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what it says itself is not the answer

import hermes_cli.main
import hermes_cli.config
import cli
from hermes_cli.runtime_provider import resolve_runtime_provider
from hermes_cli.tools_config import _get_platform_tools
from tools import approval
from gateway.hooks import HookRegistry

config = hermes_cli.config.load_config()
asked = resolve_runtime_provider()
hooks = HookRegistry()
hooks.discover_and_load()
json.dump(
    {
        "home": os.environ.get("HERMES_HOME"),
        "config": config,
        "console": cli.CLI_CONFIG,
        "environment": dict(os.environ),
        "tools": {p: sorted(_get_platform_tools(config, p)) for p in ("cli", "cron")},
        "in force": {
            "provider": asked["provider"],
            "base_url": asked["base_url"],
            "approvals": approval._get_approval_mode(),
            "approvals bypassed": approval.is_approval_bypass_active(),
            "hooks": sorted(h["name"] for h in hooks.loaded_hooks),
        },
    },
    out,
    default=str,
)
out.flush()
os._exit(0)
