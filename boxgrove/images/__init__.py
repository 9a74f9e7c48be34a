"""Where a box's first disk and its kernel come from.

`ImageStore` is the door; building and everything it needs is loaded when something is built.
"""

from boxgrove.images.errors import ImageFailed, ImageInUse, UnknownImage
from boxgrove.images.manifest import Image, KnownImage
from boxgrove.images.store import ImageStore

__all__ = ["Image", "ImageFailed", "ImageInUse", "ImageStore", "KnownImage", "UnknownImage"]
