/* A call stack as reports show it to people. */
#ifndef CA_REGISTRY_NAMES_STACK_TEXT_H
#define CA_REGISTRY_NAMES_STACK_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include "base/out.h"
#include "registry/names/frame.h"

/* Writes `count` frames, innermost first, each on a line that begins with four blanks;
 * "(no call stack)" where there is none. With `fold`, two and more functions of a framework
 * (fold.h) that come one after another are one line: the first and the last of them that has a
 * name and is no template, and the modules that they are in, or the files of Python functions. One
 * alone whose line is not known has its name and module:
 *
 *   c10::cuda::uncached_allocate < ... < torch::autograd::THPVariable_mul (+14 frames of
 *     libc10_cuda.so, libtorch_cuda.so)      (one line)
 *   Module._call_impl < Module._wrapped_call_impl (module.py) */
void ca_stack_text(ca_out_t *out, const ca_frame_t *const *frames, size_t count, bool fold);

#endif
