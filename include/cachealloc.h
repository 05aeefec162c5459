/* cachealloc: the public interface of libcachealloc.so.
 *
 * A program needs none of this to run under LD_PRELOAD=libcachealloc.so. One that wants to ask or
 * steer declares these functions weak (define CACHEALLOC_WEAK before the include) and finds them
 * only when the library is preloaded:
 *
 *     #define CACHEALLOC_WEAK
 *     #include <cachealloc.h>
 *     if (cachealloc_trim)
 *         cachealloc_trim();
 *
 * Every function is thread-safe and may be called from any thread, whatever CUDA context is
 * current, but not from a host function on a stream or a signal handler. Sizes are bytes. Functions
 * that return int return 0 or an errno value, and leave errno and CUDA's last error alone. Where
 * the library serves nothing, in the child of a fork from a process that used CUDA, those that
 * change something return ENOTSUP.
 *
 * Structs begin with their `size`, which the caller sets: a program that was built with an older
 * header gets the fields that it knows, and further fields of a newer one are zeroed. Function
 * names and struct tags differ, so that both work in C++: the type of cachealloc_stats() is
 * cachealloc_stats_t.
 */
#ifndef CACHEALLOC_H
#define CACHEALLOC_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifdef CACHEALLOC_WEAK
#define CACHEALLOC_API __attribute__((weak))
#else
#define CACHEALLOC_API
#endif

/* This header's version, "MAJOR.MINOR.PATCH". */
#define CACHEALLOC_VERSION "0.1.0"

/* The library's; static storage. */
CACHEALLOC_API const char *cachealloc_version(void);

/* --- statistics and steering ------------------------------------------------------------------ */

#define CACHEALLOC_STATS_VERSION 2

/* Statistics of the whole process, all contexts together. Counts are since the start. */
typedef struct cachealloc_stats_s {
    size_t size;         /* set by the caller to sizeof(cachealloc_stats_t) */
    unsigned version;    /* set by the call to CACHEALLOC_STATS_VERSION */
    unsigned incomplete; /* 1: a pool stayed in use, so its bytes and blocks are left out */
    uint64_t alloc_calls;
    uint64_t free_calls;
    uint64_t hits;   /* served from memory that the pool already had */
    uint64_t misses; /* served after the pool asked the driver for a segment */
    uint64_t upstream_allocs;
    uint64_t upstream_frees;
    uint64_t live_bytes; /* requested bytes of live allocations of every kind */
    /* An upper bound of the most there ever were: exact with one thread, otherwise too high by at
     * most the threads' local credit: 1 MiB each, or a 32nd of it together where that is more. */
    uint64_t live_peak_bytes;
    uint64_t reserved_bytes; /* device memory that the pool holds from the driver */
    uint64_t reserved_peak_bytes;
    uint64_t fence_records;
    uint64_t fence_queries;
    uint64_t fence_waits;
    /* since version 2 */
    uint64_t live_allocations; /* of every kind; one for memory with several names */
    uint64_t lost_allocations; /* live when their context was destroyed */
    uint64_t lost_bytes;
    uint64_t block_bytes;         /* of pooled live allocations, rounding included */
    uint64_t pending_bytes;       /* freed, and perhaps still in use by work */
    uint64_t ready_bytes;         /* free for reuse */
    uint64_t largest_ready_bytes; /* the largest ready block */
    uint64_t idle_bytes;          /* in segments without a live block */
    uint64_t segments;
    uint64_t blocks; /* live, pending, ready and exported */
    uint64_t contexts;
    uint64_t splits;
    uint64_t merges;
    uint64_t passed_through; /* allocation calls left to the driver */
    uint64_t out_of_memory;
    uint64_t wrong_frees;           /* double or interior frees refused */
    uint64_t stacks;                /* distinct call stacks kept */
    uint64_t host_bytes;            /* host memory that the library itself uses */
    uint64_t pinned_reserved_bytes; /* pinned host memory that the pool holds from the driver */
    uint64_t pinned_reserved_peak_bytes;
    uint64_t fence_joins;    /* streams made to wait for memory that another one freed */
    uint64_t exported_bytes; /* freed, and kept because other processes may have it open (IPC) */
} cachealloc_stats_t;

/* Fills `stats`, which stays the caller's. EINVAL when it is NULL or its `size` is not set. Makes
 * no CUDA call. */
CACHEALLOC_API int cachealloc_stats(cachealloc_stats_t *stats);

/* Releases all idle memory of the pool to the driver, pinned host memory too; with `capture:keep`
 * the memory kept for graphs that are destroyed returns to the pool first. Returns the bytes
 * released, 0 where there were none. The driver may wait for work on the device, and with drivers
 * from before CUDA 12.5 the call waits for all of it. */
CACHEALLOC_API size_t cachealloc_trim(void);

/* While pin mode is on freed memory keeps its place in the pool, so that a program that repeats the
 * same allocations gets the same addresses, and no memory is released to the driver. It is counted:
 * as many calls with 0 as with another value end it, and then memory is released as usual, all that
 * is idle with cachealloc_trim(). */
CACHEALLOC_API int cachealloc_set_pin_mode(int on);

/* Gives this moment a name: JSON reports have it with the time, the number of the latest allocation
 * and the live bytes, so that a program's memory can be read by its phases. `name` is copied, up
 * to 95 bytes of it; a longer one ends in `...`. The last 1,024 marks are kept, and reports say
 * how many came before. Takes some hundred nanoseconds. NULL and a library that serves nothing are
 * no error: nothing happens. */
CACHEALLOC_API void cachealloc_mark(const char *name);

/* Writes a leak report of what is live now to `path`, which may have the patterns of the option
 * leak_report; NULL: to where that option says, and to stderr where it says off. An existing file
 * is not replaced: the report then goes to PATH.PID, and a message says so. Its first line
 * ends in `cause dump`. Other threads go on, and their allocations and frees meanwhile are in it or
 * not; allocation calls wait for it for microseconds. Looking up names of functions takes most of
 * its time, and uses malloc.
 * EINVAL: a bad pattern. EBUSY: another report took 10 s, or this thread was interrupted in its
 * own. ENOMEM: no host memory. Otherwise the error of the file; with NULL the report is then on
 * stderr, and the answer is 0. */
CACHEALLOC_API int cachealloc_dump(const char *path);

typedef int (*cachealloc_oom_t)(size_t bytes, int device, int pinned, void *arg);

/* From now on fn(bytes, device, pinned, arg) is called, in the thread that allocates, where an
 * allocation of `bytes` on `device` (or of pinned memory of the host, where `pinned` is 1) is out
 * of memory, before that is reported and answered. It may free memory, allocate, and call this
 * interface, and returns: 1 for one more try of the allocation, anything else to let it fail. No
 * lock of the library's is held, but the CUDA runtime is inside the call that allocates: free what
 * the library serves, with cudaFree and its kin. It is not called inside itself. NULL: no function.
 * There is one; another call replaces it, while threads may still be in the old one. */
CACHEALLOC_API int cachealloc_on_oom(cachealloc_oom_t fn, void *arg);

/* --- memory in the order of a stream ---------------------------------------------------------- */

/* Device memory of the pool, in the order of `stream`: what is freed on a stream serves further
 * calls on it at once, since what they submit runs behind it, and other streams once the work is
 * done, or by making them wait for it. `stream` is a cudaStream_t (CUstream) of `device`: NULL and
 * 1 are the legacy default stream, 2 the calling thread's own. `device` is an ordinal, -1 the
 * current one; it need not be current, and where the thread has no context of it the default
 * streams are those of its primary context, which is made where it is not there, and then kept.
 *
 * `alignment` is 0 or a power of two: up to 512 is always met, up to 4,096 from 64 KiB on. With 0
 * bytes the answer is NULL. Otherwise NULL sets errno, as malloc does:
 * ENOMEM: out of memory, after all that cudaMalloc would try. EINVAL: an alignment that is not met,
 * or no such device, or the stream is not one of it. EBUSY: the stream is being captured, and was
 * before the first of these calls, or where the library sees no captures (below). ENODEV: no CUDA
 * driver. ENOTSUP: nothing is served in this process. EIO: the context is broken.
 *
 * In a capture the memory is no node of the graph. What is allocated or freed while a stream is
 * captured is kept, once freed, at its address for the graph, until cachealloc_trim after the
 * graph was destroyed, as with `capture:keep`.
 *
 * Memory of these calls ends with its context. It may be freed by cudaFree or cudaFreeAsync too.
 *
 * A process may also open the library (dlopen) instead of preloading it. Then these calls serve,
 * and everything that concerns their memory, but no other call is seen: cachealloc_free alone frees
 * such memory (cudaFree may take what lies around it along), a free on a stream that the program
 * made records an event at once, in a capture nothing is served (but see
 * cachealloc_torch_begin_pool), and _exit writes no report. */
CACHEALLOC_API void *cachealloc_alloc(size_t bytes, size_t alignment, int device, void *stream);

/* Frees memory of cachealloc_alloc behind the work that is on `stream` now, any stream of any
 * device; or other memory, as cudaFreeAsync does. `bytes` is not used. NULL is no error.
 * EINVAL: not the start of live memory (said on stderr, as option `log` allows), or no such stream.
 * Others as above; the memory then stays allocated. */
CACHEALLOC_API int cachealloc_free(void *pointer, size_t bytes, int device, void *stream);

/* Work of `stream` uses the memory beside that of the stream that it was allocated on: its
 * cachealloc_free is then behind all work of the context. ENOENT: no live memory begins there. */
CACHEALLOC_API int cachealloc_record_stream(void *pointer, void *stream);

/* The same in the forms that PyTorch's CUDAPluggableAllocator takes, for cachealloc.torch:
 * alloc_fn, free_fn and record_stream_fn, and what it calls around a capture (or another use of a
 * pool), by which memory is kept for graphs where the library is not preloaded. The legacy default
 * stream is in the order of its own work alone here, as in PyTorch's own cache: what other streams
 * do with memory that is freed there, cachealloc_torch_record_stream tells. PyTorch takes NULL for
 * memory: the function of cachealloc_torch_on_refusal is called before that, and may throw through
 * this library; its parameters are a function, a file, a line and a message. */
typedef void (*cachealloc_torch_refuse_t)(const char *function, const char *file, uint32_t line,
                                          const char *message);
CACHEALLOC_API void cachealloc_torch_on_refusal(cachealloc_torch_refuse_t refuse);
CACHEALLOC_API void *cachealloc_torch_alloc(ssize_t size, int device, void *stream);
CACHEALLOC_API void cachealloc_torch_free(void *pointer, ssize_t size, int device, void *stream);
CACHEALLOC_API void cachealloc_torch_record_stream(void *pointer, void *stream);
CACHEALLOC_API void cachealloc_torch_begin_pool(int device, uint64_t first, uint64_t second,
                                                void *filter);
CACHEALLOC_API void cachealloc_torch_end_pool(int device, uint64_t first, uint64_t second);
CACHEALLOC_API void cachealloc_torch_release_pool(int device, uint64_t first, uint64_t second);

/* --- single allocations ----------------------------------------------------------------------- */

typedef enum cachealloc_kind {
    CACHEALLOC_KIND_OTHER = 0, /* see `kind_name` */
    CACHEALLOC_KIND_DEVICE = 1,
    CACHEALLOC_KIND_PITCHED = 2,
    CACHEALLOC_KIND_ASYNC = 3, /* stream-ordered */
    CACHEALLOC_KIND_MANAGED = 4,
    CACHEALLOC_KIND_PINNED = 5,  /* host memory */
    CACHEALLOC_KIND_EXTERNAL = 6 /* registered */
} cachealloc_kind_t;

#define CACHEALLOC_INFO_VERSION 1

typedef struct cachealloc_info_s {
    size_t size;           /* set by the caller to sizeof(cachealloc_info_t) */
    unsigned version;      /* set by the call to CACHEALLOC_INFO_VERSION */
    int kind;              /* cachealloc_kind_t */
    const char *kind_name; /* as in the leak report; static storage */
    void *base;            /* where the memory begins */
    size_t bytes;          /* as requested */
    size_t block_bytes;    /* what it occupies in the pool; 0 where the pool does not serve it */
    size_t names;          /* live names: 1 without aliases */
    int device;            /* ordinal; 0 for memory that belongs to no device */
    uint32_t thread;       /* id (gettid) of the thread that allocated or registered it */
    void *stream;          /* of a stream-ordered allocation, else NULL */
    /* Allocations of the process since then; times are not recorded. Exact while one thread
     * allocates; with several some dozens too many or too few. */
    uint64_t age;
    /* The call stack that allocated it: the caller sets where to and how many return addresses,
     * innermost first; the call sets how many there are (0: none was recorded). */
    void **stack;
    size_t stack_capacity;
    size_t stack_count; /* at most stack_capacity */
} cachealloc_info_t;

/* Says what `ptr` points to: a live allocation or one of its names, or for memory of the pool also
 * any address inside the block. Fills `info`, which stays the caller's, as does `stack`. EINVAL
 * when `info` is NULL or its `size` is smaller than the struct of version 1; ENOENT when
 * `ptr` leads to no live allocation. Makes no CUDA call. The answer is of the moment of the call;
 * for an address inside a block the call takes time in proportion to the blocks of its segment. */
CACHEALLOC_API int cachealloc_info(const void *ptr, cachealloc_info_t *info);

/* Makes `alias` another name of the live allocation `owner`, which may be an alias itself: an
 * address inside the memory, or one where the program mapped it too. Each name is freed once, by a
 * call that frees that kind of memory; the last one, whichever it is, frees the memory. A free that
 * is not the last only drops a reference: for pooled memory the last one covers all work submitted
 * before it, on all streams; otherwise the driver's rules hold for it alone. The leak report counts
 * the memory once, by the stack of its allocation.
 * ENOENT: `owner` is not the start of a live allocation or a name. EEXIST: `alias` is. EINVAL: one
 * is NULL. ENOMEM: no host memory. */
CACHEALLOC_API int cachealloc_alias(void *owner, void *alias);

typedef void (*cachealloc_deleter_t)(void *ptr, size_t bytes, void *arg);

/* Makes `bytes` of memory from elsewhere an allocation that the leak report and cachealloc_info
 * know, by the stack of this call. It stays the caller's until it is freed with cudaFree,
 * cudaFreeHost, cudaFreeAsync or their driver's twins: that calls deleter(ptr, bytes, arg) once, in
 * the thread that frees, with no lock held, and succeeds. The deleter may call CUDA and this
 * interface. With a NULL deleter the driver gets the free. Aliases may be made of it; it belongs to
 * no context, and what is still registered when the process ends is reported and not deleted.
 * EINVAL: `ptr` is NULL, `bytes` is 0 or above 2^47, or it is memory of the pool and there is no
 * deleter. EEXIST: `ptr` is a live allocation or name. ENOMEM: no host memory. */
CACHEALLOC_API int cachealloc_register(void *ptr, size_t bytes, cachealloc_deleter_t deleter,
                                       void *arg);

/* Forgets registered memory without calling its deleter: it is the caller's again. ENOENT: `ptr`
 * was not registered, or is freed. EBUSY: it has aliases. */
CACHEALLOC_API int cachealloc_unregister(void *ptr);

/* 1 when `ptr` was registered and neither freed nor unregistered since, otherwise 0. */
CACHEALLOC_API int cachealloc_is_registered(const void *ptr);

/* Writes the leak report of another process, from the journal that it kept (option `journal`), as
 * ALLOC_CONF of this process says: report_format, leak_max, suppressions and so on. Names are
 * looked up in the files that its program and libraries were then, where those are still the same.
 * For a process of its own, which is not to use CUDA: see tools/cachealloc-journal. `path` is as
 * for cachealloc_dump; patterns in it, or in leak_report, stand for the process that was killed (%l
 * for its process id, %q for a variable of this process). EINVAL: `journal` is NULL or no journal
 * that this version reads, which is said on stderr, or `path` is a bad pattern. EBUSY: this process
 * has allocated, or read a journal. Another errno: a file cannot be opened, read or written. */
CACHEALLOC_API int cachealloc_report_journal(const char *journal, const char *path);

/* --- for python/cachealloc -------------------------------------------------------------------- */

/* Functions of Python's C interface, and functions of C that drop references to Python's objects:
 * from any thread, with or without the interpreter's lock, and whatever exception is set; after the
 * interpreter's end they do nothing. */
typedef struct cachealloc_python_s {
    size_t size; /* set by the caller, as all up to `content` */
    int (*is_initialized)(void);
    void *(*this_thread)(void); /* PyGILState_GetThisThreadState */
    int (*ensure)(void);        /* PyGILState_Ensure */
    void (*release)(int state);
    void (*drop)(void *object); /* Py_DecRef */
    int (*is_capsule)(void *capsule, const char *name);
    void *(*content)(void *capsule, const char *name);
    /* Set by the call: what DLPack's capsules are called, a deleter for a DLManagedTensor and a
     * destructor for a capsule, which drop the object that is the tensor's manager_ctx, and a
     * cachealloc_deleter_t that drops `arg`. */
    const char *tensor_name;
    void (*delete_tensor)(void *tensor);
    void (*end_capsule)(void *capsule);
    void (*delete_registered)(void *ptr, size_t bytes, void *arg);
} cachealloc_python_t;

/* A process has one interface to Python: the functions of a second call are not used. EINVAL: it is
 * NULL, or incomplete. EBUSY: another thread is in its first call. */
CACHEALLOC_API int cachealloc_python(cachealloc_python_t *interface);

#ifdef __cplusplus
}
#endif

#endif
