"""Kernels, one module a family. All have the signature `kernel(simd, [tags,] operands, step, worker, workers)`:

`operands` is the address of int64 words (an address, a count, a stride in bytes, or the bits of a float32 in the low half), in the order of the record
named beside the kernel (`..._OPERANDS`); `step` is the address of the step's words (`executor.step`); `worker` of `workers` says which share to do. A
kernel partitions its work from the step's counts, is total (no exceptions), and gives the same bits whatever the partition. Values are float32 matrices
given as address and row stride in bytes; every row is 64-byte aligned and padded to a multiple of 16 columns.

`reference` holds the naive NumPy twin of each kernel.
"""
