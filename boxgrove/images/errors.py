"""What can go wrong with images, beside the kernel and the disk space (those are in vm_backends).

    Fault (vm_backends.errors)
    ├── UnknownImage    unknown-image    no image and no recipe of that name
    ├── ImageFailed     image-failed     building stopped: a tool is missing, refused or was offline
    └── ImageInUse      image-in-use     boxes still stand on it

Each says in its hint what to do about it.
"""

from __future__ import annotations

from vm_backends.errors import Fault


class UnknownImage(Fault):
    code = "unknown-image"
    hint = "`boxgrove image ls` shows the images there are and those that can be built."


class ImageFailed(Fault):
    code = "image-failed"


class ImageInUse(Fault):
    code = "image-in-use"
    hint = "Remove the boxes that use it first; `boxgrove ls` shows them."
