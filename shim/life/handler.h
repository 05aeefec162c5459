/* The end of a process in a signal handler. What it interrupted may hold malloc's locks, or the
 * loader's: the report then needs neither. And its stack may be as small as the kernel allows. */
#ifndef CA_SHIM_LIFE_HANDLER_H
#define CA_SHIM_LIFE_HANDLER_H

#include <stdbool.h>

/* Calls it with whether the calling thread is in a signal handler. Where that is on an
 * alternate stack, calls it on one of ours, of 64 KiB, and not at all while another thread has
 * that. Whether a thread is in a handler takes some hundred system calls, no lock and no memory. On
 * other processors than x86-64 only a handler on an alternate stack is known. */
void ca_handler_call(void (*function)(bool in_handler));

#endif
