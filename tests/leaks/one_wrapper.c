/* A wrapper that all calls go through: leak_depth:1 sums up what it leaks, leak_depth:2 tells its
 * callers apart, and all frames the ways to them.
 *
 * also: depth1 depth2
 * conf[depth1]: leak_depth:1
 * conf[depth2]: leak_depth:2
 * expect: 3000 bytes in 1, device: take@take < load@load < main@load_main
 * expect: 2400 bytes in 2, device, sizes 800 to 1600: take@take < save@save < main@save_main
 * expect: 500 bytes in 1, device: take@take < load@load < again@again < main@again_main
 * expect[depth1]: 5900 bytes in 4, device, up to 1 frames, sizes 500 to 3000: take@take
 * expect[depth2]: 3500 bytes in 2, device, up to 2 frames, sizes 500 to 3000: take@take < load@load
 * expect[depth2]: 2400 bytes in 2, device, up to 2 frames, sizes 800 to 1600: take@take < save@save
 */
#include "tests/leaks/leak.h"

FRAME static int take(size_t bytes)
{
    void *pointer;
    OK(cudaMalloc(&pointer, bytes)); /* @take */
    return 1;
}

FRAME static int load(size_t bytes)
{
    return take(bytes) + 1; /* @load */
}

FRAME static int again(size_t bytes)
{
    return load(bytes) + 1; /* @again */
}

FRAME static int save(size_t bytes)
{
    return take(bytes) + 1; /* @save */
}

int main(void)
{
    CHECK(load(3000) == 2); /* @load_main */
    CHECK(again(500) == 3); /* @again_main */
    for (size_t i = 1; i <= 2; i++)
        CHECK(save(800 * i) == 2); /* @save_main */
    return 0;
}
