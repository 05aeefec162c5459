/* Pages for the fake upstream: physical memory is what fake_alloc gives, in the same space, so that
 * all of its checks are of physical bytes; addresses are others, where each page is mapped whole.
 * Memory that is live or in flight must not be unmapped. Calls are logged as letters besides:
 *
 *   M m   pages mapped, refused        U u   a row unmapped, refused
 *   V v   addresses reserved, refused
 *
 * A page that is made or dropped is an A or F. Header-only, as the other one is. */
#ifndef FAKE_PAGES_H
#define FAKE_PAGES_H

#include "fake_upstream.h"

#define FAKE_VIRTUAL ((uint64_t)0x600000000000)
#define FAKE_UNIT ((size_t)2 << 20)
#define FAKE_MAPPINGS 4096

typedef struct fake_mapping {
    uint64_t at, place;
    size_t bytes;
} fake_mapping_t;

/* Addresses in use, or freed behind so many fences. */
typedef struct fake_owned {
    uint64_t at;
    size_t bytes;
    uint32_t stamp;
} fake_owned_t;

typedef struct fake_pages {
    /* what the test sets */
    size_t space;      /* of addresses that can be reserved in one piece; 0: any */
    bool none;         /* the device cannot */
    unsigned fail_map; /* the nth mapping from now on fails once; 0: none */
    int fail_map_rc;
    unsigned fail_unmap;                     /* the same */
    void (*on_map)(void), (*on_unmap)(void); /* inside the call, before it takes effect */

    /* what the test reads */
    size_t reserved; /* pieces of addresses */
    size_t pages;    /* not dropped */
    uint64_t maps, unmaps;
    size_t mapped; /* mappings */

    /* its own, by address */
    fake_mapping_t mappings[FAKE_MAPPINGS];
    uint64_t next;
    fake_owned_t owned[FAKE_MAPPINGS];
    size_t owned_count;
} fake_pages_t;

static fake_pages_t fake_pages;

static size_t fake_mapping_at(uint64_t at)
{
    size_t i = 0;
    while (i < fake_pages.mapped && fake_pages.mappings[i].at + fake_pages.mappings[i].bytes <= at)
        i++;
    return i;
}

static size_t fake_page_piece(uint64_t address, size_t bytes, uint64_t *place)
{
    if (address < FAKE_VIRTUAL || address >= FAKE_BASE)
        return bytes;
    pthread_mutex_lock(&fake.mutex);
    size_t i = fake_mapping_at(address);
    const fake_mapping_t *mapping = &fake_pages.mappings[i];
    size_t piece = bytes;
    if (i == fake_pages.mapped || mapping->at > address) {
        fake_error("no memory at %#" PRIx64, address);
    } else {
        *place = mapping->place + (address - mapping->at);
        piece = mapping->at + mapping->bytes - address;
    }
    pthread_mutex_unlock(&fake.mutex);
    return piece < bytes ? piece : bytes;
}

/* The newest says what is so. */
static void fake_page_told(uint64_t address, size_t bytes, bool used)
{
    size_t kept = 0;
    if (address < FAKE_VIRTUAL || address >= FAKE_BASE)
        return;
    pthread_mutex_lock(&fake.mutex);
    for (size_t i = 0; i < fake_pages.owned_count; i++) {
        fake_owned_t one = fake_pages.owned[i];
        if ((one.at >= address && one.at + one.bytes <= address + bytes) ||
            (one.stamp != FAKE_LIVE && one.stamp <= fake.passed))
            continue;
        fake_pages.owned[kept++] = one;
    }
    fake_pages.owned_count = kept;
    if (kept == FAKE_MAPPINGS)
        fake_error("too many owners for this test");
    else
        fake_pages.owned[fake_pages.owned_count++] = (fake_owned_t){
            address, bytes, used ? FAKE_LIVE : (uint32_t)fake.recorded + !fake.quiet};
    pthread_mutex_unlock(&fake.mutex);
}

static void fake_look_at_owners(uint64_t at, size_t bytes)
{
    for (size_t i = 0; i < fake_pages.owned_count; i++) {
        const fake_owned_t *one = &fake_pages.owned[i];
        if (one->at < at + bytes && one->at + one->bytes > at && one->stamp > fake.passed)
            fake_error("addresses are unmapped that are %s",
                       one->stamp == FAKE_LIVE ? "live" : "in flight");
    }
}

/* The context ends, whatever was live. */
static inline void fake_forget_owners(void)
{
    fake_pages.owned_count = 0;
    if (fake.stamps)
        fake_stamps_set(fake.stamps, fake.stamps + fake.stamps_used, 0);
}

static size_t fake_page_unit(void *context)
{
    (void)context;
    return fake_pages.none ? 0 : FAKE_UNIT;
}

static int fake_page_reserve(void *context, size_t bytes, uint64_t *at)
{
    (void)context;
    bool given = !fake_pages.space || bytes <= fake_pages.space;
    pthread_mutex_lock(&fake.mutex);
    fake_note(given ? 'V' : 'v');
    if (given) {
        *at = FAKE_VIRTUAL + fake_pages.next;
        fake_pages.next += bytes + FAKE_UNIT; /* no two are neighbours */
        fake_pages.reserved++;
    }
    pthread_mutex_unlock(&fake.mutex);
    return given ? 0 : -ENOMEM;
}

static void fake_page_unreserve(void *context, uint64_t at, size_t bytes)
{
    (void)context;
    pthread_mutex_lock(&fake.mutex);
    size_t i = fake_mapping_at(at);
    if (i < fake_pages.mapped && fake_pages.mappings[i].at < at + bytes)
        fake_error("addresses go where memory is mapped");
    fake_pages.reserved--;
    pthread_mutex_unlock(&fake.mutex);
}

static int fake_page_make(void *context, size_t bytes, uint64_t *handle)
{
    int rc = fake_alloc(context, bytes, handle);
    if (bytes % FAKE_UNIT)
        fake_error("a page of %zu bytes", bytes);
    if (rc == 0)
        __atomic_fetch_add(&fake_pages.pages, 1, __ATOMIC_RELAXED);
    return rc;
}

static size_t fake_place_bytes(uint64_t place)
{
    for (size_t i = 0; i < fake.range_count; i++)
        if (fake.ranges[i].base == place)
            return fake.ranges[i].bytes;
    return 0;
}

static void fake_page_drop(void *context, uint64_t handle)
{
    pthread_mutex_lock(&fake.mutex);
    size_t bytes = fake_place_bytes(handle);
    for (size_t i = 0; i < fake_pages.mapped; i++)
        if (fake_pages.mappings[i].place == handle)
            fake_error("a page is dropped that is mapped");
    pthread_mutex_unlock(&fake.mutex);
    fake_free(context, handle, bytes, CA_FREE_IDLE);
    __atomic_fetch_sub(&fake_pages.pages, 1, __ATOMIC_RELAXED);
}

static int fake_page_map(void *context, uint64_t at, const ca_page_t *pages, size_t count)
{
    (void)context;
    if (fake_pages.on_map)
        fake_pages.on_map();
    pthread_mutex_lock(&fake.mutex);
    int rc = fake_pages.fail_map && --fake_pages.fail_map == 0 ? fake_pages.fail_map_rc : 0;
    for (size_t i = 0; i < count && rc == 0; i++) {
        size_t to = fake_mapping_at(at);
        if (to < fake_pages.mapped && fake_pages.mappings[to].at < at + pages[i].bytes)
            fake_error("mapped where something is mapped");
        if (fake_place_bytes(pages[i].handle) != pages[i].bytes)
            fake_error("a part of a page is mapped");
        if (fake_pages.mapped == FAKE_MAPPINGS) {
            fake_error("too many mappings for this test");
            break;
        }
        memmove(fake_pages.mappings + to + 1, fake_pages.mappings + to,
                (fake_pages.mapped++ - to) * sizeof *fake_pages.mappings);
        fake_pages.mappings[to] = (fake_mapping_t){at, pages[i].handle, pages[i].bytes};
        at += pages[i].bytes;
        fake_pages.maps++;
    }
    fake_note(rc ? 'm' : 'M');
    pthread_mutex_unlock(&fake.mutex);
    return rc;
}

static int fake_page_unmap(void *context, uint64_t at, size_t bytes)
{
    (void)context;
    if (fake_pages.on_unmap)
        fake_pages.on_unmap();
    pthread_mutex_lock(&fake.mutex);
    fake_look_at_owners(at, bytes);
    int rc = fake_pages.fail_unmap && --fake_pages.fail_unmap == 0 ? -EINVAL : 0;
    size_t first = fake_mapping_at(at), last = first;
    for (; last < fake_pages.mapped && fake_pages.mappings[last].at < at + bytes; last++)
        at = at > fake_pages.mappings[last].at ? 0 : at; /* a part of a page */
    if (!at || first == last ||
        fake_pages.mappings[last - 1].at + fake_pages.mappings[last - 1].bytes > at + bytes)
        fake_error("a part of a page is unmapped, or nothing");
    if (rc == 0) {
        memmove(fake_pages.mappings + first, fake_pages.mappings + last,
                (fake_pages.mapped - last) * sizeof *fake_pages.mappings);
        fake_pages.mapped -= last - first;
        fake_pages.unmaps++;
    }
    fake_note(rc ? 'u' : 'U');
    pthread_mutex_unlock(&fake.mutex);
    return rc;
}

static const ca_pages_t fake_page_table = {
    .unit = fake_page_unit,
    .reserve = fake_page_reserve,
    .unreserve = fake_page_unreserve,
    .make = fake_page_make,
    .drop = fake_page_drop,
    .map = fake_page_map,
    .unmap = fake_page_unmap,
};

/* After fake_reset. The upstream is the fake one with pages. */
static inline const ca_upstream_t *fake_with_pages(void)
{
    static ca_upstream_t upstream;
    upstream = fake_upstream;
    upstream.pages = &fake_page_table;
    memset(&fake_pages, 0, sizeof fake_pages);
    fake_piece = fake_page_piece;
    fake_told = fake_page_told;
    return &upstream;
}

#endif
