/* Memory from elsewhere that joined: registered with our interface, or pinned by the driver.
 *
 * expect: 6300 bytes in 1, external: adopt@adopt < main@main
 * expect: 5000 bytes in 1, registered: ... < pin@pin < main@pin_main
 */
#define CACHEALLOC_WEAK
#include "include/cachealloc.h"
#include "tests/leaks/leak.h"

static char buffers[3][6300];

FRAME static int adopt(void *buffer)
{
    CHECK(cachealloc_register);
    OK(cachealloc_register(buffer, 6300, NULL, NULL)); /* @adopt */
    return 1;
}

FRAME static int pin(void)
{
    OK(cudaHostRegister(buffers[2], 5000, cudaHostRegisterDefault)); /* @pin */
    return 1;
}

int main(void)
{
    CHECK(adopt(buffers[0]) == 1); /* @main */
    CHECK(adopt(buffers[1]) == 1);
    OK(cachealloc_unregister(buffers[1]));
    CHECK(pin() == 1); /* @pin_main */
    return 0;
}
