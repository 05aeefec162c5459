/* Preprocessed into the linker's version script: one anonymous node. A node with a name would hide
 * our cudaMalloc from programs that ask for cudaMalloc@@libcudart.so.13. Not C: no formatter. */
/* clang-format off */
{
  global:
#define CA_DRIVER(symbol, ...) symbol;
#define CA_RUNTIME(symbol) symbol;
#include "shim/hooks.def"
    dlsym;
    cachealloc_*;
  local:
    *;
};
/* clang-format on */
