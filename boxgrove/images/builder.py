"""From a recipe to an image on disk: what is it made from, plant the tree, write it, publish it."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from boxgrove.images import disk, manifest
from boxgrove.images.manifest import Image, KnownImage
from boxgrove.images.tree import Tree
from boxgrove.images.workshop import MIB, Workshop, workshop
from vm_backends.events import Progress

Listener = Callable[[Progress], None]


class Recipe(Protocol):
    """How one kind of image is made."""

    space_bytes: int
    least_bytes: int

    async def made_from(self, place: Workshop, progress: Listener) -> str:
        """A key of everything that goes in: an equal key means an equal image."""

    async def plant(self, tree: Tree, place: Workshop, progress: Listener) -> None:
        """Fill the tree."""


def recipe_for(name: str, resources: Path) -> Recipe:
    if name == "starter":
        from boxgrove.images.starter import Starter

        return Starter(resources / "guest" / "starter")
    from boxgrove.images.debian import Debian

    return Debian(resources / "guest" / "debian")


async def build(
    known: KnownImage, root: Path, resources: Path, kernel: str, progress: Listener
) -> Image:
    """Build `known` into `root`, or find that the image at hand is the same."""
    recipe = recipe_for(known.name, resources)
    async with workshop(root, known.name) as place:
        key = hashlib.sha256((await recipe.made_from(place, progress)).encode()).hexdigest()
        for image, made_from in installed(root):
            if image.name == known.name and made_from == key:
                progress(Progress("Nothing has changed: the image is up to date", 1, 1))
                return image
        place.need_space(recipe.space_bytes)
        tree = Tree(place.folder / "tree")
        await recipe.plant(tree, place, progress)
        return await _store(known, tree, recipe.least_bytes, key, kernel, place, progress)


async def _store(
    known: KnownImage,
    tree: Tree,
    least_bytes: int,
    key: str,
    kernel: str,
    place: Workshop,
    progress: Listener,
) -> Image:
    content = await asyncio.to_thread(tree.digest)
    digest = hashlib.sha256(f"{disk.FORMAT} {known.name} {content}".encode()).hexdigest()
    target = place.root / f"{known.name}-{digest[:16]}"
    if (same := manifest.read(target)) is not None:
        progress(Progress("Nothing has changed: the image is up to date", 1, 1))
        return same[0]
    folder = place.folder / "image"
    folder.mkdir()
    folder.chmod(0o755)
    size = await asyncio.to_thread(disk.size_for, tree, least_bytes)
    path = folder / manifest.DISK
    await disk.make(tree, place, size=size, digest=digest, target=path, progress=progress)
    path.chmod(0o444)
    image = Image(
        name=known.name,
        digest=digest,
        disk=target / manifest.DISK,
        virtual_bytes=size,
        stored_bytes=path.stat().st_blocks * 512,
        created=time.time(),
        about=known.about,
        kernel=kernel,
    )
    manifest.write(folder, image, key)
    await asyncio.to_thread(place.publish, "image", target)
    progress(Progress(f"Built {known.name} ({image.stored_bytes // MIB} MiB)", 1, 1))
    return image


def installed(root: Path) -> list[tuple[Image, str]]:
    """Every whole image in `root` with the key it was made from."""
    found = (manifest.read(path.parent) for path in root.glob(f"[!.]*/{manifest.FILE}"))
    return [pair for pair in found if pair is not None]
