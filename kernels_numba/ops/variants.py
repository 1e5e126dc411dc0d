"""Members of the compile-time values, by name. Filled by the layouts (formats) and by cache types."""
