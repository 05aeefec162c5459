/* A program without CUDA that looks whether there is one, by name. */
#include <dlfcn.h>
#include "check.h"

int main(void)
{
    void *handles[] = {RTLD_DEFAULT, RTLD_NEXT, dlopen(NULL, RTLD_NOW)};
    const char *names[] = {"cudaMalloc", "cudaFree", "cuMemAlloc_v2", "cuGetProcAddress", "cu", ""};
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 6; j++) {
            void *found = dlsym(handles[i], names[j]);
            const char *text = dlerror();
            printf("%s: %s, %s\n", names[j], found ? "there" : "not there", text ? text : "-");
            CHECK(!dlerror());
        }
    return 0;
}
