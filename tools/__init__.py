"""Scripts for working on edgeinfer. Nothing in the package imports them."""
