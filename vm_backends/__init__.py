"""Machines: one contract, several engines. Import what you need from its modules."""
