"""Power: stop, start, pause, crash, reboot, panic; and what is on disk afterwards."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.helpers.homes import Home, assert_fault, wait_until
from tests.vm.conftest import MAKE_S, MakeBox
from vm_backends.keeper import record
from vm_backends.process import ProcessMark

pytestmark = pytest.mark.vm

ALARMS = ("EXT4-fs error", "Aborting journal", "Remounting filesystem read-only", "I/O error")


def boot_id(home: Home, box: str) -> str:
    return home.ok("exec", box, "--", "cat", "/proc/sys/kernel/random/boot_id", timeout=MAKE_S)


def write(home: Home, box: str, path: str, text: str) -> None:
    """Write a file and force it to disk."""
    script = f"cat > {path} && sync"
    home.ok("exec", box, "--", "sh", "-c", script, input=text.encode())


def read(home: Home, box: str, path: str) -> str:
    return home.ok("exec", box, "--", "cat", path, timeout=MAKE_S)


def filesystem_is_sound(home: Home, box: str) -> None:
    """Mounted for writing, no complaint in the kernel's log or on the console."""
    mounts = home.ok("exec", box, "--", "grep", " / ", "/proc/mounts")
    assert " rw," in mounts
    said = home.ok("exec", box, "--", "dmesg")
    said += (home.folder(box) / "serial.log").read_text(errors="replace")
    assert not [line for line in said.splitlines() if any(alarm in line for alarm in ALARMS)]
    home.ok("exec", box, "--", "sh", "-c", "echo x > /root/writable && sync && rm /root/writable")


def nothing_of(home: Home, box: str) -> None:
    """No process, no socket, no runtime file: as if it had never run."""
    wait_until(lambda: not home.processes_of(box), what=f"{box} has no process")
    run = home.paths().box_run(str(home.show(box)["id"]))
    wait_until(lambda: not run.exists() or not list(run.iterdir()), what="no socket is left")
    assert not (home.folder(box) / "runtime.json").exists()


def engines(home: Home, box: str) -> list[int]:
    """The QEMUs that run for a box: there must never be two."""
    words = [line.split()[:2] for line in home.processes_of(box)]
    return [int(pid.rstrip(":")) for pid, program in words if "qemu-system" in program]


def test_stop_and_start_keep_files(home: Home, starter: str) -> None:
    # Without a sync: a clean stop is what writes them.
    home.ok("exec", starter, "--", "sh", "-c", "echo kept > /root/note; mkdir -p /srv/deep/er")
    before = boot_id(home, starter)
    said = home.ok("stop", starter)
    assert f"{starter} is stopped" in said
    assert "force" not in said
    assert home.state(starter) == "stopped"
    nothing_of(home, starter)
    home.ok("start", starter, timeout=MAKE_S)
    assert read(home, starter, "/root/note") == "kept\n"
    home.ok("exec", starter, "--", "test", "-d", "/srv/deep/er")
    assert boot_id(home, starter) != before
    filesystem_is_sound(home, starter)


def test_a_killed_engine_is_a_crash_with_its_reason(home: Home, starter: str) -> None:
    write(home, starter, "/root/forced", "on disk")
    home.ok("exec", starter, "--", "sh", "-c", "for n in $(seq 200); do echo $n > /root/f$n; done")
    os.kill(home.engine_pid(starter), signal.SIGKILL)
    wait_until(lambda: home.state(starter) == "crashed", what="the crash is seen")
    shown = home.show(starter)
    assert "signal 9" in shown["why"]
    assert shown["uptime_s"] is None
    line = next(line for line in home.ok("ls").splitlines() if line.startswith(starter))
    assert "crashed" in line
    assert "signal 9" in line
    nothing_of(home, starter)
    home.ok("start", starter, timeout=MAKE_S)
    assert read(home, starter, "/root/forced") == "on disk"
    filesystem_is_sound(home, starter)
    assert home.show(starter)["why"] == ""


def test_engine_and_keeper_killed_together(home: Home, starter: str) -> None:
    write(home, starter, "/root/both", "still there")
    os.kill(home.keeper_pid(starter), signal.SIGKILL)
    os.kill(home.engine_pid(starter), signal.SIGKILL)
    wait_until(lambda: home.state(starter) == "crashed", what="the crash is seen")
    assert home.show(starter)["why"]
    assert_fault(home.run("pause", starter), "wrong-state", "cannot pause a crashed box")
    assert read(home, starter, "/root/both") == "still there", "exec starts a crashed box"
    filesystem_is_sound(home, starter)


def test_pause_stops_the_guests_time(home: Home, starter: str) -> None:
    script = "n=0; while :; do n=$((n+1)); echo $n > /run/count; sleep 0.05; done"
    running = home.start("exec", starter, "--", "sh", "-c", script)
    wait_until(lambda: home.run("exec", starter, "--", "cat", "/run/count").returncode == 0)
    uptime = float(read(home, starter, "/proc/uptime").split()[0])
    began = time.monotonic()
    home.ok("pause", starter)
    assert home.state(starter) == "paused"
    engine = Path(f"/proc/{home.engine_pid(starter)}/stat")
    frozen = _cpu_ticks(engine)
    assert_fault(
        home.run("exec", starter, "--", "true"), "wrong-state", "is paused", "resume", status=125
    )
    assert_fault(home.run("shell", starter), "wrong-state", "is paused")
    assert_fault(home.run("cp", f"{starter}:/etc", "x"), "wrong-state", "is paused")
    assert_fault(home.run("start", starter), "wrong-state", "Resume it instead")
    wait_until(lambda: time.monotonic() - began > 4, what="a few seconds go by")
    assert _cpu_ticks(engine) - frozen < 50, "a paused machine needs no processor"
    paused_for = time.monotonic() - began
    home.ok("resume", starter)
    assert home.state(starter) == "running"
    after = float(read(home, starter, "/proc/uptime").split()[0])
    began_again = int(read(home, starter, "/run/count"))
    assert after - uptime < paused_for, "the guest's clock stood still"
    wait_until(lambda: int(read(home, starter, "/run/count")) > began_again)
    assert running.poll() is None, "what ran before goes on"
    running.send_signal(signal.SIGINT)
    running.wait(60)


def _cpu_ticks(stat: Path) -> int:
    fields = stat.read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def test_states_that_refuse(home: Home, make_box: MakeBox) -> None:
    make_box("idle", "--no-start")
    for verb in ("pause", "resume", "stop", "kill"):
        done = home.run(verb, "idle")
        assert_fault(done, "wrong-state", f"cannot {verb} a stopped box")
        assert len(done.stderr.decode().splitlines()) == 2, "a sentence and a hint"
    assert home.state("idle") == "stopped"
    assert not home.processes_of("idle")


def test_running_boxes_refuse_too(home: Home, starter: str) -> None:
    assert_fault(home.run("resume", starter), "wrong-state", "cannot resume a running box")
    assert_fault(home.run("rm", starter), "box-busy", "is running", "--force")
    assert "was running already" in home.ok("start", starter)


def test_stop_of_a_paused_box_is_clean(home: Home, starter: str) -> None:
    home.ok("exec", starter, "--", "sh", "-c", "echo paused > /root/unsynced")
    home.ok("pause", starter)
    assert "force" not in home.ok("stop", starter)
    assert read(home, starter, "/root/unsynced") == "paused\n"


def test_a_hung_machine_is_stopped_by_force(home: Home, starter: str) -> None:
    write(home, starter, "/root/hung", "safe")
    engine = ProcessMark.of(home.engine_pid(starter))
    assert engine
    os.kill(engine.pid, signal.SIGSTOP)
    began = time.monotonic()
    said = home.ok("stop", "--timeout", "2s", starter)
    assert "by force" in said
    assert time.monotonic() - began < 30
    assert not engine.alive()
    assert home.state(starter) == "stopped"
    nothing_of(home, starter)
    assert read(home, starter, "/root/hung") == "safe"
    filesystem_is_sound(home, starter)


def test_processes_that_will_not_end_do_not_keep_a_box_up(home: Home, starter: str) -> None:
    script = "trap '' TERM INT HUP; echo ready; while :; do sleep 1; done"
    running = home.start("exec", starter, "--", "sh", "-c", script)
    assert running.stdout and running.stdout.readline() == b"ready\n"
    assert "force" not in home.ok("stop", starter)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 125
    assert b"Traceback" not in err


def test_power_off_from_inside(home: Home, starter: str) -> None:
    home.ok("start", starter, timeout=MAKE_S)
    home.run("exec", starter, "--", "poweroff")
    wait_until(lambda: home.state(starter) == "stopped", 60, "it is off")
    assert home.show(starter)["why"] == ""
    nothing_of(home, starter)


def test_reboot_from_inside(home: Home, starter: str) -> None:
    home.ok("start", starter, timeout=MAKE_S)
    engine, before = home.engine_pid(starter), boot_id(home, starter)
    home.run("exec", starter, "--", "sh", "-c", "echo again > /root/rebooted; reboot")

    def after() -> str:
        done = home.run("exec", starter, "--", "cat", "/proc/sys/kernel/random/boot_id")
        return done.stdout.decode() if done.returncode == 0 else before

    wait_until(lambda: after() != before, MAKE_S, "it has come back")
    assert home.state(starter) == "running"
    assert home.engine_pid(starter) == engine
    assert read(home, starter, "/root/rebooted") == "again\n"


def test_a_kernel_panic_is_a_crash_with_its_reason(home: Home, starter: str) -> None:
    write(home, starter, "/root/panic", "before")
    home.run("exec", "--timeout", "20s", starter, "--", "sh", "-c", "echo c > /proc/sysrq-trigger")
    wait_until(lambda: home.state(starter) == "crashed", 60, "the panic is seen")
    assert "panic" in home.show(starter)["why"]
    assert "Kernel panic" in home.ok("logs", starter, "--serial")
    nothing_of(home, starter)
    home.ok("start", starter, timeout=MAKE_S)
    assert read(home, starter, "/root/panic") == "before"
    filesystem_is_sound(home, starter)


def test_a_console_cannot_paint_our_screen(home: Home, starter: str) -> None:
    script = "printf '\\033[31mKernel panic\\007 \\033]0;mine\\007\\n' > /dev/console; sleep 0.5; "
    home.run("exec", "--timeout", "20s", starter, "--", "sh", "-c",
             script + "echo b > /proc/sysrq-trigger")  # fmt: skip
    wait_until(lambda: home.state(starter) == "crashed", 60, "the reset is seen")
    why = home.show(starter)["why"]
    assert "Kernel panic" in why
    assert why.isprintable()
    home.ok("start", starter, timeout=MAKE_S)


def test_two_starts_at_once(home: Home, starter: str) -> None:
    home.ok("stop", starter)
    both = [home.start("start", starter) for _ in range(2)]
    for one in both:
        _, err = one.communicate(timeout=MAKE_S)
        assert (one.returncode, err) == (0, b"")
    assert home.state(starter) == "running"
    assert home.keeper_pid(starter)
    assert engines(home, starter) == [home.engine_pid(starter)]


def test_a_start_during_a_stop_is_sorted_out(home: Home, starter: str) -> None:
    home.ok("start", starter, timeout=MAKE_S)
    stop = home.start("stop", starter)
    wait_until(lambda: home.state(starter) != "running" or stop.poll() is not None)
    done = home.run("start", starter, timeout=MAKE_S)
    assert stop.wait(60) == 0
    assert b"Traceback" not in done.stderr
    if done.returncode:
        assert_fault(done, "wrong-state")
        home.ok("start", starter, timeout=MAKE_S)
    assert home.ok("exec", starter, "--", "echo", "up") == "up\n"


def test_kill_during_a_start(home: Home, starter: str) -> None:
    if home.state(starter) == "running":
        home.ok("stop", starter)
    start = home.start("start", starter)
    wait_until(lambda: home.state(starter) == "starting", what="it starts")
    home.ok("kill", starter)
    _, err = start.communicate(timeout=60)
    assert start.returncode == 1
    assert b"Traceback" not in err
    assert err.count(b"[") == 1
    wait_until(lambda: home.state(starter) in ("stopped", "crashed"))
    nothing_of(home, starter)
    assert home.ok("exec", starter, "--", "echo", "up", timeout=MAKE_S) == "up\n"


def test_ctrl_c_during_a_start(home: Home, starter: str) -> None:
    """The one who asked leaves; the box is either up or down, never in between."""
    home.ok("stop", starter)
    start = home.start("start", starter)
    wait_until(lambda: home.state(starter) == "starting", what="it starts")
    start.send_signal(signal.SIGINT)
    _, err = start.communicate(timeout=60)
    assert start.returncode == 130
    assert b"Traceback" not in err
    wait_until(lambda: home.state(starter) in ("running", "stopped"), MAKE_S, "a steady state")
    if home.state(starter) == "stopped":
        nothing_of(home, starter)
    assert home.ok("exec", starter, "--", "echo", "up", timeout=MAKE_S) == "up\n"


@pytest.mark.parametrize("step", ["Making the box", "Booting"])
def test_ctrl_c_during_a_create(home: Home, step: str) -> None:
    before = home.box_folders()
    words = ("create", "never", "--image", "starter", "--memory", "256M")
    running = home.start(*words)
    assert running.stderr
    said = b""
    while step.encode() not in said:
        line = running.stderr.readline()
        assert line, said
        said += line
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=MAKE_S)
    assert b"Traceback" not in err
    assert running.returncode == 130
    known = home.run("show", "never").returncode == 0
    assert len(home.box_folders() - before) == int(known), "a row has files and files have a row"
    if known:
        wait_until(lambda: home.state("never") in ("running", "stopped"), MAKE_S, "a steady state")
        assert home.ok("exec", "never", "--", "echo", "up", timeout=MAKE_S) == "up\n"
        assert len(engines(home, "never")) == 1
        home.ok("stop", "never")
        nothing_of(home, "never")
        home.ok("rm", "never")
    assert home.run("show", "never").returncode == 1


def test_a_keeper_killed_during_a_start_leaves_no_orphan(home: Home, starter: str) -> None:
    home.ok("stop", starter)
    start = home.start("start", starter)
    wait_until(lambda: home.state(starter) == "starting", what="it starts")
    os.kill(home.keeper_pid(starter), signal.SIGKILL)
    _, err = start.communicate(timeout=MAKE_S)
    assert b"Traceback" not in err
    assert home.ok("exec", starter, "--", "echo", "up", timeout=MAKE_S) == "up\n"
    assert len(engines(home, starter)) == 1


def test_several_boxes_in_one_command(home: Home, starter: str, make_box: MakeBox) -> None:
    make_box("other", "--no-start")
    done = home.run("start", "nobody", "other", timeout=MAKE_S)
    assert_fault(done, "unknown-box", "nobody")
    assert home.state("other") == "running"
    assert not record.read_record(home.folder("other")).why
