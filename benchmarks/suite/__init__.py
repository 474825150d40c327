"""The loader beside what people use today, and beside the limits of the machine.

`python -m benchmarks.suite --help` lists the commands. The parent process needs nothing but the standard library; every
system runs in a process and an environment of its own.
"""
