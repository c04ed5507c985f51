"""Check commands with Google's command line for Colab: parse them, run none. Runs in its Python (3.12 or newer).

    python colab_check.py '[["new", "-s", "a"], ["stop", "-s", "a"]]'
"""

import json
import sys

import typer
from colab_cli.cli import app

colab = typer.main.get_command(app)
for words in json.loads(sys.argv[1]):
    top = colab.make_context("colab", list(words), resilient_parsing=True)
    name, command, rest = colab.resolve_command(top, list(words))
    parsed = command.make_context(name, rest, parent=top)
    assert not parsed.args, f"{name} does not know {parsed.args}"
    print(name, json.dumps({key: value for key, value in parsed.params.items() if value is not None}))
