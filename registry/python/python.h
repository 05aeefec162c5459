/* Python frames of call stacks: CPython 3.8 to 3.15, without its lock, its help or a call that
 * needs it. Another version, or one that is not as its version should be, gives native frames, and
 * a line at log:info. */
#ifndef CA_REGISTRY_PYTHON_PYTHON_H
#define CA_REGISTRY_PYTHON_PYTHON_H

#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "registry/python/merge.h"
#include "registry/python/walk.h"

/* As the choices of the option `python`. */
typedef enum { CA_PYTHON_ON, CA_PYTHON_ONLY, CA_PYTHON_OFF } ca_python_choice_t;

/* Until it is called, no interpreter is looked for. At most `depth` Python frames are kept of a
 * stack (CA_PY_DEPTH_MOST; 0: none are looked for). */
void ca_python_start(ca_python_choice_t choice, unsigned depth);

/* Above 0: an interpreter is there, and its frames can be read. */
extern _Atomic int ca_python_on;
static inline bool ca_python_is_on(void)
{
    return atomic_load_explicit(&ca_python_on, memory_order_relaxed) > 0;
}

/* The loader tells of an object, or that one with these addresses is closed. Under the loader's
 * lock. */
void ca_python_meet(const struct dl_phdr_info *object);
void ca_python_closed(uintptr_t low);

/* A library is about to be closed: true where an interpreter that has ended may go with it, which
 * then rests until as many calls of the second, after another scan of what is loaded. */
bool ca_python_pause(void);
void ca_python_resume(void);

/* After a scan of what is loaded: judges an interpreter that was found. With no lock held. */
void ca_python_judge(void);

/* What a thread knows. */
typedef struct ca_python_thread ca_python_thread_t;

/* One for a thread; NULL without memory. It may be given to another thread after this one's end. */
ca_python_thread_t *ca_python_thread_new(void);

/* Where this thread is in Python. `frame`: 0 where no Python frame is on its stack, or none that
 * can be read now. It holds while the thread stays in the call. */
typedef struct ca_python_at {
    const struct ca_python_interpreter *interpreter;
    uintptr_t state, frame;
} ca_python_at_t;

ca_python_at_t ca_python_here(void);

/* The most Python frames that are kept. */
unsigned ca_python_depth(void);

/* The id of this thread's stack, of which `native` is the native part's: `native` itself where no
 * Python frame is on it, and 0 where ca_python_merge is to be called. Takes no lock. */
uint32_t ca_python_find(ca_python_thread_t *thread, const ca_python_at_t *at, uint32_t native);

/* This thread's stack, after which ca_python_keep is called: native frames merged with Python's.
 * The words are the thread's until the next call. NULL where there are native frames alone. */
const uintptr_t *ca_python_merge(ca_python_thread_t *thread, const ca_native_part_t *native,
                                 size_t *count);

/* Remembers the id of what was merged just now, or that it was the native part alone. */
void ca_python_keep(ca_python_thread_t *thread, uint32_t native, uint32_t id);

/* What is known of a word that stands for a Python frame: false where nothing is. */
bool ca_python_place(uintptr_t word, const char **function, const char **file, unsigned *line);

/* In the child of a fork: all is forgotten but the interpreter, which is there as before. */
void ca_python_reset_after_fork(void);

#endif
