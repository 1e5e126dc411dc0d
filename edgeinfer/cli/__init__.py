"""The command line: one module per command. Nothing but the entry point (`edgeinfer.__main__`) imports this package, and it imports nothing heavy at
module level."""
