/* Events that other processes open (cuIpcGetEventHandle).
 *
 * An event with a handle has a place, two counters in a file of its process that others map: how
 * often it was recorded, by any process, and which of these records is over. For a busy stream an
 * operation behind its work reports the record as over; a wait for another process's record polls,
 * on the stream in an operation. The race check knows no order between processes. */
#include "sim.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAGIC 0x4556496d6973
enum { PLACES = 4096 };

struct sim_ipc_place {
    _Atomic uint64_t recorded, over;
};

typedef struct handle {
    uint64_t magic;
    int32_t pid, file;
    uint64_t place;
} handle_t;

_Static_assert(sizeof(handle_t) <= sizeof(CUipcEventHandle), "a handle has room for ours");

/* Under the engine lock. */
static int file = -1;
static sim_ipc_place_t *places;
static uint64_t used;

typedef struct record {
    sim_ipc_place_t *place;
    uint64_t number;
} record_t;

static bool is_over(const sim_ipc_place_t *place, uint64_t number)
{
    return atomic_load(&place->over) >= number;
}

bool sim_ipc_event_foreign(CUevent e)
{
    return e->place && atomic_load(&e->place->recorded) != e->place_number;
}

bool sim_ipc_event_over(CUevent e)
{
    return is_over(e->place, atomic_load(&e->place->recorded));
}

static void report_done(void *of)
{
    record_t *r = of;
    uint64_t before = atomic_load(&r->place->over);
    while (before < r->number &&
           !atomic_compare_exchange_weak(&r->place->over, &before, r->number)) {
    }
    free(r);
}

static void poll_for(void *of)
{
    record_t *r = of;
    while (!is_over(r->place, r->number)) {
        usleep(50);
    }
    free(r);
}

static void enqueue_locked(CUstream s, void (*fn)(void *), sim_ipc_place_t *place, uint64_t number)
{
    record_t *r = malloc(sizeof(*r));
    if (!r) {
        abort();
    }
    *r = (record_t){place, number};
    sim_op_t op = {.kind = SIM_OP_HOST, .u.host = {.fn = fn, .data = r}};
    sim_enqueue_locked(s, &op);
}

void sim_ipc_event_recorded_locked(CUevent e, CUstream s)
{
    e->place_number = atomic_fetch_add(&e->place->recorded, 1) + 1;
    if (e->points.n == 0) {
        atomic_store(&e->place->over, e->place_number);
    } else {
        enqueue_locked(s, report_done, e->place, e->place_number);
    }
}

void sim_ipc_event_wait_locked(CUevent e, CUstream s)
{
    enqueue_locked(s, poll_for, e->place, atomic_load(&e->place->recorded));
}

void sim_ipc_event_synchronize(CUevent e)
{
    uint64_t number = atomic_load(&e->place->recorded);
    while (!is_over(e->place, number)) {
        usleep(50);
    }
}

static sim_ipc_place_t *map_places(int of)
{
    void *p =
        mmap(NULL, PLACES * sizeof(sim_ipc_place_t), PROT_READ | PROT_WRITE, MAP_SHARED, of, 0);
    return p == MAP_FAILED ? NULL : p;
}

static bool open_places_locked(void)
{
    if (places) {
        return true;
    }
    file = memfd_create("simcuda-events", MFD_CLOEXEC);
    if (file >= 0 && ftruncate(file, PLACES * sizeof(sim_ipc_place_t)) == 0) {
        places = map_places(file);
    }
    return places != NULL;
}

/* cuda.h: the event "must have been created with CU_EVENT_INTERPROCESS and CU_EVENT_DISABLE_TIMING"
 * [hw: the code for one that was not]. */
SIM_API CUresult cuIpcGetEventHandle(CUipcEventHandle *pHandle, CUevent event)
{
    SIM_ENTER(cuIpcGetEventHandle);
    SIM_TRY(sim_event_check(event));
    if (!pHandle || !(event->flags & CU_EVENT_INTERPROCESS)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult rc = CUDA_SUCCESS;
    sim_lock();
    if (!event->place && open_places_locked() && used < PLACES) {
        event->place = &places[used++];
        event->place_number = 0;
        if (!sim_event_done_locked(event)) { /* an earlier record is reported too */
            for (size_t i = 0; i < event->points.n; i++) {
                CUstream s = event->points.at[i].stream;
                if (i == 0) {
                    sim_ipc_event_recorded_locked(event, s);
                }
            }
        }
    }
    if (!event->place || event->place < places || event->place >= places + PLACES) {
        rc = event->place ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
    } else {
        handle_t handle = {MAGIC, getpid(), file, (uint64_t)(event->place - places)};
        memset(pHandle, 0, sizeof(*pHandle));
        memcpy(pHandle, &handle, sizeof(handle));
    }
    sim_unlock();
    return rc;
}

SIM_API CUresult cuIpcOpenEventHandle(CUevent *phEvent, CUipcEventHandle from)
{
    char path[64];
    handle_t handle;
    SIM_ENTER(cuIpcOpenEventHandle);
    memcpy(&handle, &from, sizeof(handle));
    if (!phEvent || handle.magic != MAGIC || handle.place >= PLACES) {
        return phEvent ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    }
    if (handle.pid == getpid()) {
        return CUDA_ERROR_INVALID_CONTEXT; /* it is of another process [hw: the code] */
    }
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)handle.pid, (int)handle.file);
    int theirs = open(path, O_RDWR | O_CLOEXEC);
    sim_ipc_place_t *there = theirs < 0 ? NULL : map_places(theirs); /* for good */
    if (theirs >= 0) {
        close(theirs);
    }
    if (!there) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    SIM_TRY(cuEventCreate(phEvent, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    sim_lock();
    (*phEvent)->place = &there[handle.place];
    (*phEvent)->place_number = 0;
    sim_unlock();
    return CUDA_SUCCESS;
}
