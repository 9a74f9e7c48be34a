"""Images for the fake engine: every name is there at once, and nothing is built."""

from __future__ import annotations

import builtins
from pathlib import Path

from boxgrove.images.manifest import Image
from boxgrove.images.store import ImageStore, Listener, _nobody
from vm_backends.spec import MIB, BootFiles


class PretendImages(ImageStore):
    def list(self) -> builtins.list[Image]:
        return [self._image(known.name) for known in self.known()]

    def find(self, name_or_digest: str) -> Image | None:
        return self._image(name_or_digest.removeprefix("pretend-"))

    async def ensure(self, name: str, progress: Listener = _nobody) -> Image:
        self.recipe(name)
        return self._image(name)

    async def build(self, name: str, progress: Listener = _nobody) -> Image:
        return await self.ensure(name, progress)

    async def boot_files(self, progress: Listener = _nobody) -> BootFiles:
        return BootFiles(Path("/dev/null"), Path("/dev/null"))

    def _image(self, name: str) -> Image:
        return Image(
            name=name, digest=f"pretend-{name}", disk=Path("/dev/null"), virtual_bytes=64 * MIB,
            stored_bytes=0, created=0.0, about="A pretend image", kernel="pretend",
        )  # fmt: skip
