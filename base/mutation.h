/* Deliberate faults, so that tests can prove that a check is able to fail. Debug builds alone read
 * CA_MUTATION=NAME from the environment; in a release build every question is a constant no. */
#ifndef CA_BASE_MUTATION_H
#define CA_BASE_MUTATION_H

#include <stdbool.h>

/* Traps that were known before, each with its fix removed. */
#define CA_TRAPS(X)                                                                                \
    X(dlsym_called)        /* the real dlsym is called, not jumped to */                           \
    X(swap_for_rtld_next)  /* what others look up behind us is swapped too */                      \
    X(absent_found)        /* our exports are found where no other module has the name */          \
    X(ucx_swapped)         /* what patches the code of functions gets ours to patch */             \
    X(driver_not_kept)     /* the driver's addresses are remembered, its library is not kept */    \
    X(dlsym_next_skipped)  /* of dlsym the C library's is next, though others have one */          \
    X(status_needed)       /* cuGetProcAddress without a place for the status is refused */        \
    X(empty_name_refused)  /* as is one for "" */                                                  \
    X(fifth_argument_read) /* the form with four arguments has a fifth */                          \
    X(runtime_next_only)   /* the runtime is looked for with RTLD_NEXT alone */                    \
    X(runtime_first)       /* every module's calls go to the first runtime */                      \
    X(setdevice_trusted)   /* the driver's current device is right after cudaSetDevice */          \
    X(forwards_unseen)     /* a free that goes to the driver meets no segment there */             \
    X(context_handles_trusted) /* a context's handle is never given to another one */              \
    X(lost_addresses_kept)     /* a context's memory is its own until its end has returned */      \
    X(stream_handles_trusted)  /* nor is a stream's */                                             \
    X(own_stream_shared)       /* the per-thread default stream is one stream */                   \
    X(green_unwatched)         /* contexts of green contexts have memory of their own */           \
    X(release_destroys)        /* the first release of a primary context ends it */                \
    X(unwind_in_lock)          /* stacks are unwound with a lock held */                           \
    X(stack_unverified)        /* a stack is known again by where it starts */                     \
    X(stack_returns_only)      /* or by the return addresses that it had */                        \
    X(unload_unseen)           /* it goes unnoticed that a library was closed */                   \
    X(unload_cached)           /* or what is known of frames is kept even so */                    \
    X(return_address_named)    /* what is after a call is named, not the call */                   \
    X(report_calls_cuda)       /* the report at exit asks the driver */                            \
    X(report_too_early)        /* it is written before handlers that run later */                  \
    X(tables_end)              /* nothing is known any more once it is written */                  \
    X(pid_unchecked)           /* any process that runs destructors writes it */                   \
    X(fork_child_serves)       /* the child of a fork goes on with its parent's memory */          \
    X(wiped_page_ignored)      /* as does the child of a clone */

/* Of Python frames (registry/python/python.h), each with a rule removed. */
#define CA_PYTHON_FAULTS(X)                                                                        \
    X(python_code_unchecked)     /* a code is known again by its address */                        \
    X(python_outer_unread)       /* Python frames are known again by the innermost one */          \
    X(python_index_single)       /* an instruction of 3.10 has one byte */                         \
    X(python_unproven)           /* a layout is believed that types speak against */               \
    X(python_end_unseen)         /* an interpreter never ends */                                   \
    X(python_interpreters_mixed) /* interpreters give codes no version that another one gave */

/* Of reuse in order (pool/fence/order.h), each with a rule removed. */
#define CA_ORDER_FAULTS(X)                                                                         \
    X(order_skipped)          /* no stream is made to wait for what was handed out in flight */    \
    X(order_overdue)          /* work is waited for that may wait for this thread */               \
    X(order_lazily_recorded)  /* a fence is recorded when its memory is asked for */               \
    X(order_counted_by_arena) /* another thread's free counts as the thread's own */               \
    X(order_by_free_async)    /* so does one by a call that waits for nothing */                   \
    X(order_flag)             /* a stream that waited once is behind all that comes */             \
    X(order_unnumbered)       /* fences pass in the order of the list */                           \
    X(order_open_epoch)       /* what has no fence yet serves too */                               \
    X(order_false_proof)      /* whatever was waited for, all has passed */                        \
    X(order_other_context)    /* a second context changes nothing */                               \
    X(order_exported)         /* nor does it that memory leaves the order of streams */            \
    X(order_in_capture)       /* nor that a stream is captured */                                  \
    X(order_pinned)           /* memory of the host serves in order */                             \
    X(order_held)             /* work that waits for a thread is like any other */                 \
    X(order_pdl)              /* so is work that begins early */                                   \
    X(order_second_thread)    /* a second thread's second stream changes nothing */                \
    X(order_stream_ended)     /* a stream's number is never given to another one */                \
    X(order_not_woken)    /* what is freed is behind the newest fence, whatever came after it */   \
    X(order_several_kept) /* a thread on several streams learns of no fence that is begun */

#define CA_MUTATIONS(X)                                                                            \
    X(none)                                                                                        \
    X(reuse_pending)        /* freed memory is handed out at once */                               \
    X(reuse_cached)         /* what a thread freed it gets back at once */                         \
    X(pinned_reuse)         /* the same of pinned memory alone */                                  \
    X(fence_legacy_only)    /* a fence forgets non-blocking streams */                             \
    X(fence_no_peers)       /* a fence forgets contexts with peer access */                        \
    X(fence_before_free)    /* a fence is recorded before the frees that it is to cover */         \
    X(query_unrecorded)     /* an event that was never recorded counts as completed */             \
    X(reuse_across_streams) /* what was freed on one stream is handed out on another at once */    \
    X(home_at_once)         /* no fault: a stream comes home whenever it may, for tests */         \
    X(home_shared)          /* what is ready in one stream's order is handed out to all */         \
    X(home_unfenced)        /* it is ready for all once that stream has left home */               \
    X(home_released)        /* it goes back upstream in flight */                                  \
    X(legacy_unfenced)      /* what was freed on the legacy stream is taken before its fence */    \
    X(reuse_across_reset)   /* the arena of a context that was reset goes on serving */            \
    X(capture_gate)         /* fences are recorded while streams are captured */                   \
    X(runtime_next)         /* a module's runtime is the next one in the order of look-up */       \
    X(lookup_blind)         /* cuGetProcAddress answers with the driver's own functions */         \
    X(dlsym_blind)          /* and so does dlsym */                                                \
    X(reuse_exported)       /* memory that another process may see is handed out again */          \
    X(overlap_kept)         /* a launch begins before what had its memory has ended */             \
    X(order_jumps)          /* a submission is looked at before its call alone */                  \
    X(order_once)           /* or after its call alone */                                          \
    X(order_unseen)         /* submissions that are not seen are not looked for */                 \
    X(view_pages_kept)      /* what a view uses serves by its first address too */                 \
    X(view_early)           /* it does so as soon as the view is freed */                          \
    X(view_pinned_returned) /* or once it has passed, in pin mode too */                           \
    X(view_counted)         /* addresses count as memory */                                        \
    X(map_half)             /* pages that could not be mapped are not released   */                \
    X(unmap_unfenced)       /* pages are unmapped that may be in flight */                         \
    X(ipc_still_range)      /* ranges grow on though a handle was refused */                       \
    X(peer_unmapped)        /* a peer is not let into memory that is mapped */                     \
    X(reached_released)     /* memory that devices on the bus reach is released */                 \
    X(handle_exported)      /* a page's handle is given for the memory in it */                    \
    X(range_small)          /* all that a program has comes from ranges, and views */              \
    X(unproven_used)        /* every driver is proven to do with ranges */                         \
    X(range_left)           /* the pages of a context that ended stay */                           \
    CA_PYTHON_FAULTS(X)                                                                            \
    CA_ORDER_FAULTS(X)                                                                             \
    CA_TRAPS(X)

typedef enum {
#define CA_MUTATION(name) CA_MUTATION_##name,
    CA_MUTATIONS(CA_MUTATION)
#undef CA_MUTATION
        CA_MUTATION_COUNT
} ca_mutation_t;

#if CA_DEBUG
extern _Atomic(ca_mutation_t) ca_mutation;
/* Called by the first of our code that runs, and again by others. Warns of an unknown name. */
void ca_mutation_read(void);
#define CA_MUTATED(name) (ca_mutation == CA_MUTATION_##name)
#else
static inline void ca_mutation_read(void)
{
}
#define CA_MUTATED(name) false
#endif

#endif
