/* Looks names up in every way and prints the answers, which must be the same with and without the
 * shim: NULL or the library that the address is of (the shim stands for the one whose name it
 * takes), dlerror's text, codes, status.
 *
 *   lookups              all of it
 *   lookups names        dlsym and dlvsym alone, for a libcuda.so.1 that has little in it
 *   lookups global       the same with libcuda.so.1 open for everybody */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include "check.h"

/* The form of CUDA 11.3. */
typedef CUresult (*get_v1_t)(const char *, void **, int, cuuint64_t);
typedef CUresult (*get_v2_t)(const char *, void **, int, cuuint64_t,
                             CUdriverProcAddressQueryResult *);

static const char *const names[] = {
    "",
    "c",
    "cu",
    "cuM",
    "cuNoSuchFunction",
    "cuInit",
    "cuMemAlloc_v2",
    "cuMemAlloc", /* of 32-bit sizes: not ours */
    "cuMemFree_v2",
    "cuMemAllocAsync_ptsz",
    "cuGreenCtxCreate",
    "cuGetProcAddress",
    "cuGetProcAddress_v2",
    "cudaMalloc",
    "cudaMallocAsync_ptsz",
    "cudaGetLastError",
    "cudaNoSuchFunction",
    "dlsym",
    "dlopen",
    "strlen",
    "no such function",
};
#define NAMES (sizeof(names) / sizeof(names[0]))

static const char *of(const char *name, void *address)
{
    Dl_info info;
    if (!address)
        return "NULL";
    if (!dladdr(address, &info) || !info.dli_fname)
        return "unknown";
    const char *base = strrchr(info.dli_fname, '/');
    base = base ? base + 1 : info.dli_fname;
    if (strncmp(base, "libcachealloc", strlen("libcachealloc")) != 0)
        return base;
    return strncmp(name, "cuda", 4) == 0 ? "libcudart.so.13"
           : strncmp(name, "cu", 2) == 0 ? "libcuda.so.1"
                                         : "libc.so.6";
}

static void print(const char *where, const char *name, const char *version, void *address)
{
    const char *text = dlerror();
    printf("%s \"%s\"%s: %s, %s\n", where, name, version, of(name, address), text ? text : "-");
    CHECK(!dlerror());
}

static void by_name(const char *where, void *handle)
{
    static const char *const versions[] = {"libcudart.so.13", "GLIBC_2.2.5", "GLIBC_9.99"};
    for (size_t i = 0; i < NAMES; i++) {
        print(where, names[i], "", dlsym(handle, names[i]));
        for (size_t v = 0; v < sizeof(versions) / sizeof(versions[0]); v++)
            print(where, names[i], versions[v], dlvsym(handle, names[i], versions[v]));
    }
}

static void by_procaddr(void *four_arguments, get_v2_t get_v2)
{
    get_v1_t get_v1 = (get_v1_t)four_arguments;
    get_v2_t get_v1_with_more = (get_v2_t)four_arguments;
    static const int versions[] = {0, 2000, 3020, 11030, 12000, 13000, 99000, -1};
    static const char *const asked[] = {"cuMemAlloc", "cuMemAlloc_v2", "cuMemAllocAsync",
                                        "cuCtxFromGreenCtx", "cuGetProcAddress"};
    int bad = 1;
    for (size_t i = 0; i < NAMES + sizeof(asked) / sizeof(asked[0]); i++) {
        const char *name = i < NAMES ? names[i] : asked[i - NAMES];
        for (int v = 0; v < 8; v++) {
            for (cuuint64_t flags = 0; flags < 5; flags++) {
                CUdriverProcAddressQueryResult status = (CUdriverProcAddressQueryResult)77;
                void *found = &bad;
                int code = (int)get_v2(name, &found, versions[v], flags, &status);
                printf("v2 \"%s\" %d %d: %d, %d, %s\n", name, versions[v], (int)flags, code,
                       (int)status, found == &bad ? "untouched" : of("cu", found));
                void *again = &bad;
                ANSWERS(code, get_v2(name, &again, versions[v], flags, NULL));
                CHECK(again == found);
                /* What comes fifth is nobody's status: it is never written. */
                found = &bad;
                code = (int)get_v1_with_more(name, &found, versions[v], flags,
                                             (CUdriverProcAddressQueryResult *)&bad);
                CHECK(bad == 1);
                printf("v1 \"%s\" %d %d: %d, %s\n", name, versions[v], (int)flags, code,
                       found == &bad ? "untouched" : of("cu", found));
            }
        }
    }
    CUdriverProcAddressQueryResult status = (CUdriverProcAddressQueryResult)77;
    void *found = &bad;
    printf("no place: %d", (int)get_v2("cuMemAlloc", NULL, 12000, 0, &status));
    printf(", %d", (int)get_v2("cuMemAlloc", NULL, 12000, 0, NULL));
    printf(", %d", (int)get_v1("cuMemAlloc", NULL, 12000, 0));
    printf(", status %d\n", (int)status);
    printf("no name: %d", (int)get_v2(NULL, &found, 12000, 0, &status));
    printf(", %d", (int)get_v2(NULL, &found, 12000, 0, NULL));
    printf(", %d", (int)get_v1(NULL, &found, 12000, 0));
    printf(", status %d, %s\n", (int)status, found == &bad ? "untouched" : "touched");
}

static void by_runtime(void)
{
    static int bad;
    for (size_t i = 0; i < NAMES; i++) {
        for (int version = 0; version <= 13000; version += 1000) {
            enum cudaDriverEntryPointQueryResult status = (enum cudaDriverEntryPointQueryResult)77;
            void *found = &bad;
            int code = (int)cudaGetDriverEntryPointByVersion(names[i], &found, (unsigned)version,
                                                             cudaEnableDefault, &status);
            printf("entry point \"%s\" %d: %d, %d, %s", names[i], version, code, (int)status,
                   found == &bad ? "untouched" : of("cu", found));
            code = (int)cudaGetDriverEntryPointByVersion(names[i], &found, (unsigned)version,
                                                         cudaEnablePerThreadDefaultStream, NULL);
            printf("; %d, last error %d\n", code, (int)cudaGetLastError());
        }
    }
    printf("no place: %d\n",
           (int)cudaGetDriverEntryPointByVersion("cuInit", NULL, 12000, cudaEnableDefault, NULL));
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "all";
    int scope = strcmp(mode, "global") == 0 ? RTLD_GLOBAL : RTLD_LOCAL;
    by_name("everywhere, before", RTLD_DEFAULT);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | scope);
    void *runtime = dlopen("libcudart.so.13", RTLD_NOW | RTLD_NOLOAD);
    CHECK(driver && runtime);
    by_name("driver", driver);
    by_name("runtime", runtime);
    by_name("everywhere", RTLD_DEFAULT);
    by_name("next", RTLD_NEXT);
    by_name("program", dlopen(NULL, RTLD_NOW));
    if (strcmp(mode, "all") != 0)
        return 0;
    by_procaddr(dlsym(driver, "cuGetProcAddress"), (get_v2_t)dlsym(driver, "cuGetProcAddress_v2"));
    by_runtime();
    return 0;
}
