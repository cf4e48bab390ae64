"""Fast operations that are not engines of `attend`."""
