"""Can these images serve this model on these machines, and which way works: asked before anything is paid for."""
