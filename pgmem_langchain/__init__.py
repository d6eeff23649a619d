"""pgmem for LangChain and LangGraph."""
