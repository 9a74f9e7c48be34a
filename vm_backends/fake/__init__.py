"""A driver without a hypervisor: its guest is Python in the same process."""
