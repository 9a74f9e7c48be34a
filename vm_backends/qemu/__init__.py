"""Machines in QEMU: KVM where it really works, software emulation everywhere else."""
