"""The keeper process: `python -m vm_backends.keeper HOME RUN [--start] [--ready-fd N]`.

Plain asyncio, no Qt, no pydantic: there is one of these for every running box.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from vm_backends.errors import Fault
from vm_backends.keeper import record
from vm_backends.keeper.server import Keeper
from vm_backends.registry import backend
from vm_backends.spec import MachineSpec
from vm_backends.state import MachineState

LOG_LIMIT = 256 * 1024


async def keep(home: Path, run: Path, *, start: bool, tell: Callable[[bytes], None]) -> int:
    lock = record.KeeperLock(home)
    if not lock.take():
        tell(record.ALREADY_KEPT)
        return 0
    spec = MachineSpec.from_json((home / record.SPEC).read_text())
    run.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        machine = await backend(spec.backend).open(spec, home, run)
    except Fault as fault:
        failed = record.MachineRecord(
            MachineState.CRASHED, fault.message, code=fault.code, hint=fault.hint
        )
        record.write_record(home, failed, None)
        logging.getLogger("boxgrove.keeper").warning("%s: %s", fault.code, fault.message)
        return 1
    keeper = Keeper(machine)
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(
            keeper.serve(run / record.SOCKET, lambda: tell(record.LISTENING))
        )
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, serving.cancel)
        group.create_task(keeper.begin(start=start))
        gc.collect()
        gc.freeze()
    with suppress(OSError):
        run.rmdir()
    return 0


def main(words: list[str]) -> int:
    home, run = Path(words[0]), Path(words[1])
    ready_fd = int(words[words.index("--ready-fd") + 1]) if "--ready-fd" in words else None
    if ready_fd is not None and os.fork():
        # We outlive whoever started us: they should have no child to look after.
        os._exit(0)

    def tell(word: bytes) -> None:
        if ready_fd is not None:
            # Whoever asked for the keeper may have left (Ctrl-C): it goes on all the same.
            with suppress(BrokenPipeError):
                os.write(ready_fd, word)
            os.close(ready_fd)

    log = home / record.LOG
    with suppress(FileNotFoundError):
        if log.stat().st_size > LOG_LIMIT:
            os.replace(log, f"{log}.old")
    logging.basicConfig(
        filename=log, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    logging.captureWarnings(True)
    try:
        return asyncio.run(keep(home, run, start="--start" in words, tell=tell))
    except (asyncio.CancelledError, KeyboardInterrupt):
        return 0
    except BaseException:
        logging.getLogger("boxgrove.keeper").exception("the keeper failed")
        raise


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
