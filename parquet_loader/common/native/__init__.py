"""The compiled kernels: built with the package, loaded by `ctypes`; each stage binds those it calls."""
