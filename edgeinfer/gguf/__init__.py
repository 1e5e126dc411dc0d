"""GGUF files: the reader (`reader.GGUFFile`) and our own small writer (`writer.write_gguf`). Knows nothing of models, tokenizers or backends."""
