"""The compiled kernels: built with the package, loaded by `ctypes`; each package binds those it calls."""
