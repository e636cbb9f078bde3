"""Being here, in the package `tests`, it makes pytest put the project's root on the path, for `tests.support`."""
