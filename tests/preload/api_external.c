/* Memory from elsewhere: registered, known, freed through its deleter.
 *
 * api_external        each rule in turn; nothing is left
 * api_external driver one free of each call for memory that has no deleter
 * api_external leak   two registered buffers of 777 bytes are forgotten by `lose_foreign` */
#include "api.h"

#define BYTES ((size_t)3000)

static struct {
    int calls;
    void *pointer, *argument;
    size_t bytes;
} deleted;

static void deleter(void *pointer, size_t bytes, void *argument)
{
    deleted.calls++;
    deleted.pointer = pointer;
    deleted.bytes = bytes;
    deleted.argument = argument;
    CHECK(!cachealloc_is_registered(pointer));
    free(pointer);
}

static char *foreign(void)
{
    char *pointer = malloc(BYTES);
    CHECK(pointer);
    OK(cachealloc_register(pointer, BYTES, deleter, &deleted));
    CHECK(cachealloc_is_registered(pointer));
    deleted.calls = 0;
    return pointer;
}

static void check_deleted(const void *pointer)
{
    CHECK(deleted.calls == 1 && deleted.pointer == pointer && deleted.bytes == BYTES);
    CHECK(deleted.argument == &deleted && !cachealloc_is_registered(pointer));
}

static void wrong(cudaError_t answer)
{
    CHECK(answer == cudaErrorInvalidValue);
    ANSWERS(cudaErrorInvalidValue, cudaGetLastError());
}

static void every_free_calls_the_deleter_once(void)
{
    for (int how = 0; how < 3; how++) {
        char *pointer = foreign();
        cachealloc_info_t info = api_info(pointer);
        CHECK(info.base == pointer && info.bytes == BYTES && info.names == 1);
        CHECK(info.kind == CACHEALLOC_KIND_EXTERNAL && !strcmp(info.kind_name, "external"));
        CHECK(info.stream == NULL && info.block_bytes == 0);
        if (how == 0)
            OK(cudaFree(pointer));
        else if (how == 1)
            OK(cudaFreeHost(pointer));
        else
            OK(cudaFreeAsync(pointer, NULL));
        check_deleted(pointer);
        wrong(how == 1 ? cudaFreeHost(pointer) : cudaFree(pointer));
        CHECK(deleted.calls == 1);
        api_unknown(pointer);
    }
}

static void unregistered_memory_is_the_callers(void)
{
    char *pointer = foreign();
    OK(cachealloc_unregister(pointer));
    CHECK(!cachealloc_is_registered(pointer));
    ANSWERS(ENOENT, cachealloc_unregister(pointer));
    wrong(cudaFree(pointer));
    CHECK(deleted.calls == 0);
    OK(cachealloc_register(pointer, BYTES, deleter, &deleted)); /* and may come again */
    OK(cudaFree(pointer));
    check_deleted(pointer);
}

static void with_aliases(void)
{
    char *pointer = foreign();
    OK(cachealloc_alias(pointer, pointer + 8));
    ANSWERS(EBUSY, cachealloc_unregister(pointer));
    ANSWERS(ENOENT, cachealloc_unregister(pointer + 8));
    CHECK(!cachealloc_is_registered(pointer + 8));
    OK(cudaFree(pointer));
    CHECK(deleted.calls == 0 && !cachealloc_is_registered(pointer));
    ANSWERS(EEXIST, cachealloc_register(pointer, BYTES, deleter, NULL)); /* its memory is live */
    ANSWERS(ENOENT, cachealloc_unregister(pointer));
    CHECK(api_info(pointer + 8).base == pointer);
    OK(cudaFreeHost(pointer + 8));
    check_deleted(pointer);

    pointer = foreign();
    OK(cachealloc_alias(pointer, pointer + 8));
    OK(cudaFree(pointer + 8));
    CHECK(deleted.calls == 0);
    OK(cachealloc_unregister(pointer));
    free(pointer);
    CHECK(deleted.calls == 0);
}

/* Without a deleter the driver answers, and what it refuses stays registered. */
static void without_deleter(void)
{
    static char memory[100];
    OK(cachealloc_register(memory, sizeof(memory), NULL, NULL));
    wrong(cudaFree(memory));
    wrong(cudaFreeHost(memory));
    OK(cachealloc_alias(memory, memory + 1));
    OK(cudaFree(memory));
    wrong(cudaFree(memory + 1));
    CHECK(api_info(memory + 1).base == memory && api_info(memory + 1).names == 1);
    OK(cachealloc_alias(memory + 1, memory));
    ANSWERS(EBUSY, cachealloc_unregister(memory));
    CHECK(cachealloc_is_registered(memory));
    OK(cudaFree(memory + 1));
    OK(cachealloc_unregister(memory));
}

static void errors(void)
{
    static char memory[1];
    char *device;
    OK(cudaMalloc((void **)&device, BYTES));
    ANSWERS(EINVAL, cachealloc_register(NULL, 1, deleter, NULL));
    ANSWERS(EINVAL, cachealloc_register(memory, 0, deleter, NULL));
    ANSWERS(EINVAL, cachealloc_register(memory, SIZE_MAX, deleter, NULL));
    ANSWERS(EEXIST, cachealloc_register(device, 1, deleter, NULL));
    ANSWERS(ENOENT, cachealloc_unregister(NULL));
    ANSWERS(ENOENT, cachealloc_unregister(memory));
    ANSWERS(ENOENT, cachealloc_unregister(device));
    CHECK(!cachealloc_is_registered(NULL) && !cachealloc_is_registered(device));
    if (api_info(device).block_bytes > 0) {
        ANSWERS(EINVAL, cachealloc_register(device + 512, 1, NULL, NULL));
        OK(cachealloc_register(device + 512, 1, deleter, NULL)); /* a part that the program cut */
        OK(cachealloc_unregister(device + 512));
    }
    OK(cudaFree(device));
}

/* A deleter may do what the program may. */
static void calls_back(void *pointer, size_t bytes, void *argument)
{
    void *again;
    CHECK(argument == &deleted);
    OK(cachealloc_register(pointer, bytes, deleter, argument));
    OK(cudaMalloc(&again, bytes));
    OK(cudaFree(again));
    OK(cudaFree(pointer));
}

static void deleters_may_call_back(void)
{
    char *pointer = foreign();
    OK(cachealloc_unregister(pointer));
    OK(cachealloc_register(pointer, BYTES, calls_back, &deleted));
    OK(cudaFree(pointer));
    check_deleted(pointer);
}

static NOINLINE void lose_foreign(void)
{
    static char lost[2][777];
    OK(cachealloc_register(lost[0], 777, deleter, NULL));
    OK(cachealloc_register(lost[1], 777, deleter, NULL));
}

int main(int argc, char **argv)
{
    if (!api_there())
        return 0;
    if (argc > 1 && strcmp(argv[1], "leak") == 0) {
        lose_foreign();
        return 0;
    }
    if (argc > 1 && strcmp(argv[1], "driver") == 0) {
        static char memory[100];
        OK(cachealloc_register(memory, sizeof(memory), NULL, NULL));
        wrong(cudaFree(memory));
        wrong(cudaFreeHost(memory));
        wrong(cudaFreeAsync(memory, NULL));
        OK(cachealloc_unregister(memory));
        return 0;
    }
    every_free_calls_the_deleter_once();
    unregistered_memory_is_the_callers();
    with_aliases();
    without_deleter();
    errors();
    deleters_may_call_back();
    cachealloc_stats_t stats = api_stats();
    CHECK(stats.live_allocations == 0 && stats.live_bytes == 0);
    ANSWERS(cudaSuccess, cudaGetLastError());
    return 0;
}
