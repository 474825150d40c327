"""Compares the loader with other loaders, and with the limits of the machine.

`python -m benchmarks.suite --help` lists the commands. The parent process needs only the standard library; every system
runs in its own process and environment.
"""
