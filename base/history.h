/* The last events of the process's memory, in a ring: `history:N`. An event is a claimed place and
 * a few stores: no lock, no I/O, no heap. It costs nothing where the ring is off. */
#ifndef CA_BASE_HISTORY_H
#define CA_BASE_HISTORY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
    CA_EVENT_ALLOC, /* the program was given memory */
    CA_EVENT_FREE,  /* the program freed it; work in flight may still use it */
    CA_EVENT_READY, /* all such work has passed: the pool may give it out again. Not noted for what
                       a thread cache keeps */
    CA_EVENT_SEGMENT, /* the pool got memory from the driver */
    CA_EVENT_TRIM,    /* the pool gave it back */
    CA_EVENT_OOM,     /* an allocation failed for want of memory; no address */
    CA_EVENTS
} ca_event_kind_t;

#define CA_EVENT_NO_DEVICE 255u

typedef struct ca_event {
    uint64_t ns; /* see clock_ns of ca_history_start */
    uint64_t address;
    uint64_t bytes;  /* as requested, of a segment as obtained */
    uint64_t stream; /* of a stream-ordered allocation, else 0 */
    uint32_t stack;  /* the registry's id; 0 for none */
    uint32_t thread; /* 0 for none */
    uint8_t event;   /* ca_event_kind_t */
    uint8_t device;  /* ordinal, or CA_EVENT_NO_DEVICE */
    uint8_t kind;    /* the registry's ca_kind_t, of an allocation and its free */
} ca_event_t;

extern _Atomic bool ca_history_on;

/* Keeps the last `events` from now on, timed by that clock. 0, or -ENOMEM: it stays off. Once,
 * before any other thread is here. */
int ca_history_start(size_t events, uint64_t (*clock_ns)(void));

/* From any thread, with any lock held. Its ns is set here. */
void ca_history_add(const ca_event_t *event);
#define ca_history_note(...)                                                                       \
    do {                                                                                           \
        if (__builtin_expect(atomic_load_explicit(&ca_history_on, memory_order_relaxed), 0))       \
            ca_history_add(&(ca_event_t){__VA_ARGS__});                                            \
    } while (0)

/* Copies the events, oldest first, into as much as ca_history_count says at the time; returns how
 * many. `*dropped` counts those that were before them, or that other threads are writing. */
size_t ca_history_count(void);
size_t ca_history_copy(ca_event_t *events, size_t space, uint64_t *dropped);

void ca_history_reset_after_fork(void);

#endif
