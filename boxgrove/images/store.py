"""The images of this grove: what there is, what can be built, and the way to the builders."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

from boxgrove.images import manifest
from boxgrove.images.errors import ImageFailed, ImageInUse, UnknownImage
from boxgrove.images.manifest import Image, KnownImage
from boxgrove.resources import resources as default_resources
from vm_backends.events import Progress

if TYPE_CHECKING:
    from boxgrove.images.boot import BootStore
    from vm_backends.spec import BootFiles

Listener = Callable[[Progress], None]
DIGEST_LEAST = 12
"""Characters of a digest that are enough to name an image."""


def _nobody(_: Progress) -> None:
    """The listener of a caller who does not want to know."""


class ImageStore:
    """Images live in `root`, one folder each; kernels and initial ramdisks in `boot`."""

    def __init__(self, root: Path, boot: Path, resources: Path | None = None) -> None:
        self._root = root
        self._boot_root = boot
        self._resources = resources or default_resources()

    def list(self) -> builtins.list[Image]:
        """Every whole image, by name, the newest of a name first."""
        folders = self._root.glob(f"[!.]*/{manifest.FILE}")
        read = (manifest.read(path.parent) for path in folders)
        found = [pair[0] for pair in read if pair is not None]
        return sorted(found, key=lambda image: (image.name, -image.created))

    def find(self, name_or_digest: str) -> Image | None:
        """The newest image of that name, or the one whose digest starts so (12 characters on)."""
        images = self.list()
        for image in images:
            if image.name == name_or_digest:
                return image
        if len(name_or_digest) >= DIGEST_LEAST:
            return next((i for i in images if i.digest.startswith(name_or_digest)), None)
        return None

    def known(self) -> builtins.list[KnownImage]:
        """What can be built here."""
        from boxgrove.images import recipes

        return recipes.read(self._resources / "images.toml")

    def recipe(self, name: str) -> KnownImage:
        """The one of `known` with that name."""
        recipes = {known.name: known for known in self.known()}
        if name not in recipes:
            raise UnknownImage(f"there is no image {name!r}; known are {', '.join(recipes)}")
        return recipes[name]

    async def ensure(self, name: str, progress: Listener = _nobody) -> Image:
        """The newest image of that name; built now if there is none."""
        return self.find(name) or await self.build(name, progress)

    async def build(self, name: str, progress: Listener = _nobody) -> Image:
        """Build it with today's packages, and take today's kernel if it can be had.

        When nothing that goes in has changed the image at hand is given, and the last progress
        says so.
        """
        recipe = self.recipe(name)
        from boxgrove.images import builder

        boot = self._boot()
        await boot.provide(progress, refresh=True)
        current = boot.current()
        release = current.release if current else ""
        return await builder.build(recipe, self._root, self._resources, release, progress)

    def remove(self, name: str, in_use: Collection[str]) -> None:
        """Remove every image of that name, or the one with that digest; all or none of them."""
        newest = self.find(name)
        if newest is None:
            raise UnknownImage(f"there is no image {name!r}")
        doomed = [image for image in self.list() if image.name == name] or [newest]
        for image in doomed:
            if image.digest in in_use:
                raise ImageInUse(f"the image {image.name} ({image.digest[:12]}) is in use")
        import shutil

        for image in doomed:
            try:
                # Without its manifest it is no image any more, should we be stopped half way.
                (image.disk.parent / manifest.FILE).unlink()
                shutil.rmtree(image.disk.parent)
            except OSError as error:
                raise ImageFailed(
                    f"the image {image.name} could not be removed: {error.strerror}"
                ) from error

    async def boot_files(self, progress: Listener = _nobody) -> BootFiles:
        """Kernel and initial ramdisk, made when missing or when the agent has changed."""
        return await self._boot().provide(progress)

    def boot_files_at_hand(self) -> BootFiles | None:
        """The boot files if nothing has to be made for them."""
        return self._boot().ready()

    def _boot(self) -> BootStore:
        from boxgrove.images.boot import BootStore

        return BootStore(self._boot_root, self._resources)
