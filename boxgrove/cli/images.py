"""`image`: what boxes start from."""

from __future__ import annotations

import time

import click

from boxgrove.cli.context import Grove, with_grove
from boxgrove.cli.progress import meter
from boxgrove.cli.render import print_json, print_table
from boxgrove.core import sizes
from boxgrove.core.model import iso_time


@click.group("image")
def image_command() -> None:
    """List, build and remove images.

    \b
    Examples:
      boxgrove image ls
      boxgrove image build debian
      boxgrove image rm starter
    """


@image_command.command("ls")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@with_grove
async def image_ls(grove: Grove, *, as_json: bool) -> None:
    """List the images there are, and those that can be built."""
    images = await grove.images()
    if as_json:
        print_json(
            [
                {
                    "name": image.name,
                    "digest": image.digest,
                    "created": iso_time(image.created),
                    "stored_bytes": image.stored_bytes,
                    "disk_bytes": image.virtual_bytes,
                    "kernel": image.kernel,
                    "boxes": len(grove.service.store.uses_of_image(image.digest)),
                }
                for image in images
            ]
        )
        return
    now = time.time()
    built = [
        (image.name, image.digest[:12], sizes.show(image.stored_bytes),
         sizes.show_age(max(0.0, now - image.created)), image.about)
        for image in images
    ]  # fmt: skip
    there = {image.name for image in images}
    missing = [
        (known.name, "not built", "", "", known.about)
        for known in grove.service.images.known()
        if known.name not in there
    ]
    print_table(("NAME", "DIGEST", "SIZE", "AGE", "ABOUT"), built + missing)


@image_command.command("build")
@click.argument("name", metavar="NAME")
@with_grove
async def image_build(grove: Grove, *, name: str) -> None:
    """Build an image; one that would come out the same is kept."""
    began = time.monotonic()
    with meter() as show:
        image = await grove.build_image(name, show)
        await grove.service.images.boot_files(show)
    took = sizes.show_age(time.monotonic() - began)
    click.echo(f"{image.name} {image.digest[:12]} ({sizes.show(image.stored_bytes)}, {took})")


@image_command.command("rm")
@click.argument("name", metavar="NAME")
@with_grove
async def image_rm(grove: Grove, *, name: str) -> None:
    """Remove an image that no box stands on."""
    await grove.service.remove_image(name)
    click.echo(f"{name} is removed")
