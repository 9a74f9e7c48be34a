"""`completion`: the script that teaches a shell our commands and the names of your boxes."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from boxgrove.cli.main import main


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_command(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    Examples:
      boxgrove completion bash > ~/.local/share/bash-completion/completions/boxgrove
      boxgrove completion zsh > "${fpath[1]}/_boxgrove"
      boxgrove completion fish > ~/.config/fish/completions/boxgrove.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(main, {}, "boxgrove", "_BOXGROVE_COMPLETE").source())
