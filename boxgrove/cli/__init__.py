"""The command line: one small module a group of commands, loaded when it is called."""
