"""`python -m boxgrove` is the command line."""

from boxgrove.cli.main import run

run()
