"""Models: the bundled embedder, adapters to those of LangChain and LlamaIndex, and the check of vectors."""

from pgmem_core.models.adapters import AdaptedEmbedder, as_embedder
from pgmem_core.models.bundled import BundledEmbedder
from pgmem_core.models.vectors import check_vector, check_vectors

__all__ = ["AdaptedEmbedder", "BundledEmbedder", "as_embedder", "check_vector", "check_vectors"]
