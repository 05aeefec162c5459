/* SIMCUDA=shared:PATH: several processes on one simulated device. A file that all of them map holds
 * an entry for each: its process, and the physical bytes that it uses on each device. The sum of
 * these is the device's memory in use.
 *
 * An entry belongs to a process by number and start time: a process that was killed (and the next
 * one that gets its number) holds nothing. Entries of dead processes are cleared where a request
 * would otherwise be refused, and when the free memory is asked for. flock orders the processes:
 * the kernel releases it for one that dies. */
#include "sim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ENTRIES = 256 };

typedef struct entry {
    _Atomic int32_t pid; /* 0: free */
    uint64_t started;
    _Atomic uint64_t used[SIM_MAX_DEVICES];
} entry_t;

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static char path[4096];
static int file = -1;
static pid_t opener; /* a child that shares its parent's description shares its lock, too */
static entry_t *entries, *own_entry;

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
    const size_t bytes = ENTRIES * sizeof(entry_t);
    file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, (off_t)bytes) != 0) {
        return false;
    }
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    entries = at == MAP_FAILED ? NULL : at;
    opener = getpid();
    return entries != NULL;
}

bool sim_shared_open(const char *value)
{
    snprintf(path, sizeof(path), "%s", value);
    return strlen(value) < sizeof(path) && map_file();
}

bool sim_shared_on(void)
{
    return entries != NULL;
}

static void lock(void)
{
    pthread_mutex_lock(&mu);
    if (opener != getpid()) {
        own_entry = NULL;
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

static void clear(entry_t *s)
{
    for (int i = 0; i < SIM_MAX_DEVICES; i++) {
        atomic_store(&s->used[i], 0);
    }
    atomic_store(&s->pid, 0);
}

static void bury_locked(void)
{
    for (int i = 0; i < ENTRIES; i++) {
        int32_t pid = atomic_load(&entries[i].pid);
        if (pid && &entries[i] != own_entry && start_of(pid) != entries[i].started) {
            clear(&entries[i]);
        }
    }
}

static uint64_t others_locked(int device)
{
    uint64_t sum = 0;
    for (int i = 0; i < ENTRIES; i++) {
        if (&entries[i] != own_entry && atomic_load(&entries[i].pid)) {
            sum += atomic_load(&entries[i].used[device]);
        }
    }
    return sum;
}

/* At the first use, not before: a process may fork before it uses CUDA. */
static bool attach_locked(void)
{
    for (int i = 0; !own_entry && i < ENTRIES; i++) {
        if (atomic_load(&entries[i].pid) == getpid()) { /* of the program that called exec */
            clear(&entries[i]);
        }
    }
    for (int pass = 0; !own_entry && pass < 2; pass++) {
        for (int i = 0; !own_entry && i < ENTRIES; i++) {
            if (atomic_load(&entries[i].pid) == 0) {
                own_entry = &entries[i];
                own_entry->started = start_of(getpid());
                atomic_store(&own_entry->pid, getpid());
            }
        }
        if (!own_entry) {
            bury_locked();
        }
    }
    if (!own_entry) {
        fprintf(stderr, "simcuda: shared: more than %d processes\n", ENTRIES);
    }
    return own_entry != NULL;
}

bool sim_shared_take(int device, size_t bytes)
{
    if (!entries) {
        return true;
    }
    lock();
    bool ok = attach_locked();
    if (ok) {
        uint64_t own = atomic_load(&own_entry->used[device]);
        ok = own + others_locked(device) + bytes <= sim_opt.memory;
        if (!ok) {
            bury_locked();
            ok = own + others_locked(device) + bytes <= sim_opt.memory;
        }
        if (ok) {
            atomic_fetch_add(&own_entry->used[device], bytes);
        }
    }
    unlock();
    return ok;
}

void sim_shared_give(int device, size_t bytes)
{
    if (entries && own_entry) {
        atomic_fetch_sub(&own_entry->used[device], bytes);
    }
}

size_t sim_shared_others(int device)
{
    if (!entries) {
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
    if (entries && own_entry && atomic_load(&own_entry->pid) == getpid()) {
        clear(own_entry);
    }
    own_entry = NULL;
}
