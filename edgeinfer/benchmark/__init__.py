"""`edgeinfer bench`: our engine beside its peers on the same file, in the same run, in alternating rounds, each in a process of its own.

A face like the command line: `child` runs inside those processes, `rounds` drives them, `results` sums up, `display` prints.
"""
