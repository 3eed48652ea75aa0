"""A package, so that one of this name among the installed ones does not hide it: older releases of mcap have one."""
