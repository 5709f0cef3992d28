"""Each command with its required arguments."""

from __future__ import annotations

COMMANDS = (
    "apply",
    "cancel census",
    "env",
    "fetch census",
    "import --live",
    "import --live --adopt",
    "import jobs/census.yaml",
    "init",
    "init --claims",
    "logs census",
    "migrate --write",
    "open --no-browser",
    "plan",
    "plan --base HEAD",
    "render census",
    "report",
    "rerun census",
    "resolve census --resubmit",
    "run -- true",
    "serve",
    "serve --stop",
    "show census",
    "status",
    "tensorboard census",
    "validate",
    "validate --format github",
    "verify census",
    "watch",
)
