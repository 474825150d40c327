"""The compiled kernels: built with the package and loaded by `ctypes`; each package wraps the ones it calls."""
