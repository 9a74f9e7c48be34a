"""The entry point: finds the command, runs it, turns a Fault into a sentence and a status.

Starting quickly is a feature here, so commands are imported when they are called and nothing
heavy is imported above them.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any, NoReturn

import click

from boxgrove.version import __version__
from vm_backends.errors import Fault

EXIT_FAULT = 1
EXIT_INTERRUPTED = 130

# Command -> module; the order is the order of the help page.
SECTIONS: dict[str, dict[str, str]] = {
    "Boxes": {
        "create": "create",
        "ls": "listing",
        "show": "listing",
        "start": "power",
        "stop": "power",
        "kill": "power",
        "pause": "power",
        "resume": "power",
        "rename": "keep",
        "rm": "keep",
        "trash": "keep",
        "logs": "logs",
    },
    "Inside a box": {"exec": "run", "shell": "shell", "cp": "copy"},
    "Around": {
        "image": "images",
        "doctor": "doctor",
        "tour": "tour",
        "completion": "completion",
    },
}
MODULES = {name: module for section in SECTIONS.values() for name, module in section.items()}


class Commands(click.Group):
    """Loads a command's module when it is asked for."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(MODULES)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in MODULES:
            return None
        module = import_module(f"boxgrove.cli.{MODULES[name]}")
        command: click.Command = getattr(module, f"{name}_command")
        return command

    def resolve_command(
        self, context: click.Context, words: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = words[0]
        if name not in MODULES:
            from difflib import get_close_matches

            close = get_close_matches(name, MODULES, n=1)
            more = f" Did you mean `{close[0]}`?" if close else ""
            context.fail(f"there is no command `{name[:40]}`.{more}")
        return super().resolve_command(context, words)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in SECTIONS.items():
            rows = []
            for name in names:
                command = self.get_command(context, name)
                if command is not None:
                    rows.append((name, command.get_short_help_str(70)))
            with formatter.section(title):
                formatter.write_dl(rows)


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Try `boxgrove tour`, or: boxgrove create a --image starter && boxgrove shell a",
)
@click.version_option(__version__, prog_name="boxgrove")
def main() -> None:
    """Small virtual machines for agents, that keep their state for ever."""


def run(words: list[str] | None = None) -> NoReturn:
    """Run the command line and leave with its status."""
    sys.exit(call(words))


def call(words: list[str] | None = None) -> int:
    """Run one command; its exit status, with everything said that is to be said."""
    try:
        result: Any = main(args=words, prog_name="boxgrove", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except Fault as fault:
        return tell(fault)
    except (KeyboardInterrupt, click.Abort):
        click.echo(err=True)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read us has left; Python must not try to flush to them again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13


def tell(fault: Fault, status: int = EXIT_FAULT) -> int:
    """One sentence, its code, and the way out if there is one."""
    message = click.style("boxgrove: ", bold=True) + fault.message
    click.echo(f"{message} [{fault.code}]", err=True)
    if fault.hint:
        click.echo(f"  {fault.hint}", err=True)
    return status
