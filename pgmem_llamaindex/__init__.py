"""pgmem for LlamaIndex."""
