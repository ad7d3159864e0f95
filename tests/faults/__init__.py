"""Device calls that fail: a GPU's libraries for a machine without one."""
