/*
 * The fact script: what its files share.
 *
 * A fact is a question that only hardware can answer (design.md 12), a function that answers it in
 * rows, and a time limit. Every fact runs in a process of its own, because several are about the
 * first CUDA call, a broken context or the end of the process; what it has found before it dies or
 * is stopped is kept, because each row leaves the process as soon as it is complete.
 *
 * Must not know: libcachealloc, but for its counts (facts_seen.c); the simulator, but for what it
 * has kernels do (facts_gate.c). Only plain allocations and, of virtual memory,
 * what a program may ask for; at most three quarters of the device's memory, and no setting of the
 * card is touched.
 */
#ifndef TESTS_GPU_FACTS_H
#define TESTS_GPU_FACTS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* dladdr; this header comes first everywhere */
#endif

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct fact {
    const char *name; /* "group" or "group/case": the page shows a group as one table */
    void (*run)(const char *arg);
    const char *arg;
    int limit_s;
    const char *answers;
} fact_t;

/* --- rows: one flat JSON object each (facts_row.c) ------------------------------------------- */
void row_begin(void);
void row_str(const char *key, const char *value);
void row_int(const char *key, long long value);
void row_num(const char *key, double value);
void row_bool(const char *key, bool value);
void row_drv(const char *key, CUresult code); /* "CUDA_ERROR_INVALID_VALUE (1)" */
void row_rt(const char *key, cudaError_t code);
void row_end(void); /* writes it out with one system call; usable after stdio has ended */
void row_note(const char *text);                              /* a row with only a note */
void json_string(char *out, size_t bytes, const char *value); /* quoted and escaped */

/* --- time ------------------------------------------------------------------------------------ */
uint64_t now_ns(void);
void sleep_ms(int ms);
typedef struct spread {
    double median_ns, p90_ns;
} spread_t;
spread_t spread_of(double *samples, int count); /* sorts them */
void row_spread(const char *key, spread_t s);   /* KEY_median_ns and KEY_p90_ns */

/* --- the driver, newer than the headers where need be (facts_driver.c) ------------------------ */
typedef CUresult (*record_ctx_fn)(CUcontext, CUevent);
typedef CUresult (*ctx_id_fn)(CUcontext, unsigned long long *);
typedef CUresult (*stream_id_fn)(CUstream, unsigned long long *);
typedef CUresult (*get_proc_fn)(const char *, void **, int, cuuint64_t, void *);

void *driver_symbol(const char *name); /* dlsym on libcuda.so.1, NULL where it has none */
void *driver_entry(const char *base);  /* cuGetProcAddress_v2, newest version; NULL */
record_ctx_fn ctx_record(void);        /* cuCtxRecordEvent, 12.5 and newer; NULL */
ctx_id_fn ctx_id(void);                /* cuCtxGetId, 12.0 and newer; NULL */
stream_id_fn stream_id(void);          /* cuStreamGetId, 12.0 and newer; NULL */
CUresult ctx_create(CUcontext *ctx, CUdevice dev); /* cuCtxCreate_v2, in every toolkit */
CUcontext use_primary(void); /* cudaSetDevice(0), cudaFree(0); ends the fact where that fails */
size_t may_take(void);       /* bytes that leave a quarter of the device's memory free */

/* --- holding streams busy (facts_hold.c) ------------------------------------------------------ */
/* Work that runs until released: a host function, or a kernel that watches a pinned word. Both end
 * by themselves after HOLD_LIMIT_MS, so that a probe which waits for them cannot hang. One hold at
 * a time, over any number of streams. */
#define HOLD_LIMIT_MS 4000
typedef enum holder { BY_HOST_FUNCTION, BY_KERNEL, HOLDERS } holder_t;
extern const char *const holder_names[HOLDERS];

bool hold_usable(holder_t how); /* tried on a stream once; false where it does not hold */
void hold_open(void);
CUresult hold_stream(holder_t how, CUcontext ctx, CUstream stream);
void hold_begun(holder_t how); /* waits until the work has reached the device */
void hold_for_ms(int ms);      /* a helper thread releases after that time */
uint64_t hold_finish(void);    /* releases now if that has not happened; when it was released */
/* Launches a store to that address. */
CUresult hold_poke(CUcontext ctx, CUdeviceptr where, CUstream stream);

/* The places where work can be in flight while the primary context of device 0 is asked. */
typedef struct place {
    const char *name;
    CUcontext ctx;
    CUstream stream;
} place_t;
#define PLACES_MAX 8
int places_make(place_t *out);    /* how many there are on this machine */
bool place_make_peer(place_t *p); /* peer access with it from now on; false where it cannot be */
void place_drain(const place_t *p);

/* --- the facts -------------------------------------------------------------------------------- */
void fact_platform(const char *arg);
void fact_entry_points(const char *arg);
void fact_call_cost(const char *arg);
void fact_alloc_cost(const char *arg);
void fact_record_covers(const char *arg);
void fact_record_rules(const char *arg);
void fact_record_gone(const char *arg);
void fact_green(const char *arg);
void fact_free_waits(const char *arg);
void fact_others_wait(const char *arg);
void fact_stream_order(const char *arg);
void fact_layout(const char *arg);
void fact_address_range(const char *arg);
void fact_ipc(const char *arg);
void fact_pinned_flags(const char *arg);
void fact_first_call(const char *arg);
void fact_codes_runtime(const char *arg);
void fact_codes_driver(const char *arg);
void fact_codes_context(const char *arg);
void fact_after_reset(const char *arg);
void fact_sticky(const char *arg);
void fact_capture(const char *arg);
void fact_handles(const char *arg);
void fact_set_device(const char *arg);
void fact_teardown(const char *arg);
void fact_order_asleep(const char *arg);
void fact_order_copies(const char *arg);
void fact_order_waits(const char *arg);
void fact_order_programmatic(const char *arg);
void fact_order_handles(const char *arg);
void fact_order_seen(const char *arg);
void fact_vmm_device(const char *arg);
void fact_vmm_ranges(const char *arg);
void fact_vmm_pointers(const char *arg);
void fact_vmm_copies(const char *arg);
void fact_vmm_cost(const char *arg);
void fact_vmm_again(const char *arg);
void fact_vmm_many(const char *arg);
void fact_vmm_alias(const char *arg);
void fact_vmm_busy(const char *arg);
void fact_vmm_capture(const char *arg);
void fact_vmm_gone(const char *arg);
void fact_vmm_peers(const char *arg);

#endif
