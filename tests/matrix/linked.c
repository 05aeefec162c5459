/* A program that is linked with the runtime, shared or static, or built with a sanitizer.
 * linked [SYMBOL] also says which library has that symbol: whose interposer is in force. */
#include <dlfcn.h>
#include "tests/matrix/work.h"

int main(int argc, char **argv)
{
    printf("%lld\n", work());
    if (argc > 1) {
        Dl_info info;
        void *address = dlsym(RTLD_DEFAULT, argv[1]);
        CHECK(address && dladdr(address, &info) && info.dli_fname);
        const char *base = strrchr(info.dli_fname, '/');
        printf("%s is in %s\n", argv[1], base ? base + 1 : info.dli_fname);
    }
    return 0;
}
