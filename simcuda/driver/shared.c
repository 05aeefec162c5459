/* SIMCUDA=shared:PATH: several processes on one simulated device. A file that all of them map holds
 * a slot for each: its process, and the physical bytes that it uses on each device. The sum of
 * these is the device's memory in use.
 *
 * A slot belongs to a process by number and start time: a process that was killed (and the next one
 * that gets its number) holds nothing. Slots of dead processes are cleared where a request would
 * otherwise be refused, and when the free memory is asked for. flock orders the processes: the
 * kernel releases it for one that dies. */
#include "sim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SLOTS = 256 };

typedef struct slot {
    _Atomic int32_t pid; /* 0: free */
    uint64_t started;
    _Atomic uint64_t used[SIM_MAX_DEVICES];
} slot_t;

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static char path[4096];
static int file = -1;
static pid_t opener; /* a child that shares its parent's description shares its lock, too */
static slot_t *slots, *own_slot;

/* When a process started, in the kernel's ticks; 0: there is none, or it is dead and not yet
 * collected. */
static uint64_t start_of(int32_t pid)
{
    char name[64], text[1024];
    unsigned long long started = 0;
    char state = 'X';
    snprintf(name, sizeof(name), "/proc/%d/stat", (int)pid);
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);
    if (fd >= 0) {
        close(fd);
    }
    text[n > 0 ? n : 0] = 0;
    const char *name_end = strrchr(text, ')'); /* a name may hold anything */
    if (!name_end ||
        sscanf(name_end + 1,
               " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu",
               &state, &started) != 2) {
        return 0;
    }
    return state == 'Z' || state == 'X' ? 0 : started;
}

static bool map_file(void)
{
    const size_t bytes = SLOTS * sizeof(slot_t);
    file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, (off_t)bytes) != 0) {
        return false;
    }
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    slots = at == MAP_FAILED ? NULL : at;
    opener = getpid();
    return slots != NULL;
}

bool sim_shared_open(const char *value)
{
    snprintf(path, sizeof(path), "%s", value);
    return strlen(value) < sizeof(path) && map_file();
}

bool sim_shared_on(void)
{
    return slots != NULL;
}

static void lock(void)
{
    pthread_mutex_lock(&mu);
    if (opener != getpid()) {
        own_slot = NULL;
        if (!map_file()) {
            fprintf(stderr, "simcuda: shared: cannot open %s\n", path);
            abort();
        }
    }
    while (flock(file, LOCK_EX) != 0 && errno == EINTR) {
    }
}

static void unlock(void)
{
    flock(file, LOCK_UN);
    pthread_mutex_unlock(&mu);
}

static void clear(slot_t *s)
{
    for (int i = 0; i < SIM_MAX_DEVICES; i++) {
        atomic_store(&s->used[i], 0);
    }
    atomic_store(&s->pid, 0);
}

static void bury_locked(void)
{
    for (int i = 0; i < SLOTS; i++) {
        int32_t pid = atomic_load(&slots[i].pid);
        if (pid && &slots[i] != own_slot && start_of(pid) != slots[i].started) {
            clear(&slots[i]);
        }
    }
}

static uint64_t others_locked(int device)
{
    uint64_t sum = 0;
    for (int i = 0; i < SLOTS; i++) {
        if (&slots[i] != own_slot && atomic_load(&slots[i].pid)) {
            sum += atomic_load(&slots[i].used[device]);
        }
    }
    return sum;
}

/* At the first use, not before: a process may fork before it uses CUDA. */
static bool attach_locked(void)
{
    for (int i = 0; !own_slot && i < SLOTS; i++) {
        if (atomic_load(&slots[i].pid) == getpid()) { /* of the program that called exec */
            clear(&slots[i]);
        }
    }
    for (int pass = 0; !own_slot && pass < 2; pass++) {
        for (int i = 0; !own_slot && i < SLOTS; i++) {
            if (atomic_load(&slots[i].pid) == 0) {
                own_slot = &slots[i];
                own_slot->started = start_of(getpid());
                atomic_store(&own_slot->pid, getpid());
            }
        }
        if (!own_slot) {
            bury_locked();
        }
    }
    if (!own_slot) {
        fprintf(stderr, "simcuda: shared: more than %d processes\n", SLOTS);
    }
    return own_slot != NULL;
}

bool sim_shared_take(int device, size_t bytes)
{
    if (!slots) {
        return true;
    }
    lock();
    bool ok = attach_locked();
    if (ok) {
        uint64_t own = atomic_load(&own_slot->used[device]);
        ok = own + others_locked(device) + bytes <= sim_opt.memory;
        if (!ok) {
            bury_locked();
            ok = own + others_locked(device) + bytes <= sim_opt.memory;
        }
        if (ok) {
            atomic_fetch_add(&own_slot->used[device], bytes);
        }
    }
    unlock();
    return ok;
}

void sim_shared_give(int device, size_t bytes)
{
    if (slots && own_slot) {
        atomic_fetch_sub(&own_slot->used[device], bytes);
    }
}

size_t sim_shared_others(int device)
{
    if (!slots) {
        return 0;
    }
    lock();
    bury_locked();
    size_t used = others_locked(device);
    unlock();
    return used;
}

void sim_shared_close(void)
{
    if (slots && own_slot && atomic_load(&own_slot->pid) == getpid()) {
        clear(own_slot);
    }
    own_slot = NULL;
}
