"""What models are asked, one module a prompt: its version, its words, and the model of its reply.

The words are fixed text and the conversation is passed in beside them: nothing that was said is ever part of a
template. A version string changes whenever the words do; it stands in the trace of every call.
"""
